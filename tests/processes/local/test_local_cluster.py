"""The local cluster is a separate distribution: it is used through its public modules, and errors name it if it isn't
installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The modules in the table in `trainmaster_local/__init__.py`.
PUBLIC = {f"trainmaster_local.{name}" for name in ("config", "embedded", "cluster", "inside", "testing.clusters")}
# Runs the command line in an environment where the first argument's packages can't be imported.
BLOCKED = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from trainmaster.cli.main import app
app()
"""


def imports(path: Path) -> Iterator[str]:
    """Returns the local cluster's modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == "trainmaster_local":
                names = [f"trainmaster_local.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "trainmaster_local")


def test_only_public_modules_of_the_local_cluster_are_imported() -> None:
    folders = [ROOT / name for name in ("operator", "images", "tests", "bench", "tools")]
    found = {(path, name) for folder in folders for path in folder.rglob("*.py") for name in imports(path)}
    assert found
    assert {(path.relative_to(ROOT).as_posix(), name) for path, name in found if name not in PUBLIC} == set()


def test_the_local_cluster_s_door_names_its_public_modules() -> None:
    text = (ROOT / "local" / "trainmaster_local" / "__init__.py").read_text()
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {f"trainmaster_local.{row}" for row in rows} == PUBLIC


def test_the_local_cluster_knows_no_name_of_trainmaster_but_its_own() -> None:
    for path in (ROOT / "local" / "trainmaster_local").rglob("*"):
        if path.suffix in (".py", ".json"):
            text = path.read_text().lower().replace("trainmaster_local", "").replace("trainmaster-local", "")
            assert "trainmaster" not in text, path


@pytest.mark.parametrize("command", [("up",), ("down",), ("status",)])
def test_without_the_local_cluster_a_sentence_says_which_extra_to_install(command: tuple[str, ...]) -> None:
    done = run("trainmaster_local", "local", *command)
    assert done.returncode == 1
    assert done.stderr == "error: the local cluster isn't installed: pip install 'trainmaster[local]'\n"


@pytest.mark.parametrize("missing", ["trainmaster_local", "trainloop"])
def test_without_its_parts_the_demo_says_which_extra_to_install(missing: str) -> None:
    done = run(missing, "demo")
    assert done.returncode == 1
    assert done.stderr == "error: what the demo needs isn't installed: pip install 'trainmaster[demo]'\n"


def run(missing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, missing, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
