#!/usr/bin/env bash
# The tests, in three lanes that run at once: one computes, one mostly waits, one has what is a single process. A failure
# in one stage doesn't hide the next one's. A stage's output is printed whole when the stage ends; the last lines say how
# long each stage took and what was left out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
# Each of a thousand processes would compile our modules, and each of pytest's all tests.
unset PYTHONDONTWRITEBYTECODE
python=${VENV:-.venv}/bin/python
# What takes long is named, so that it is seen when a stage grows.
pytest=("$python" -m pytest -q -p no:cacheprovider --durations=10 --durations-min=4)
recorded=local/tests/cluster/conformance/test_api.py
# Tests of real processes that may fail once and pass alone before the run fails, and those that are run again, in all
# stages together: of more the product is broken.
flaky_limit=2 again_limit=10
# A line for each stage in `times`, and for each failed one in `failed`; the failed tests of each stage of real processes;
# what the operators of the cluster tests ask the API server for.
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
mkdir "$results/again" "$results/rights"
touch "$results/times" "$results/failed"

# Prints its input; one lane at a time.
print() { flock "$results/printing" cat; }

# Runs a command as a stage.
stage() {
  local title=$1 began=$SECONDS output
  shift
  output=$(mktemp -p "$results")
  echo "-- begins: $title" | print
  "$@" >"$output" 2>&1 || echo "$title" >>"$results/failed"
  printf '%5d s  %s\n' $((SECONDS - began)) "$title" >>"$results/times"
  { printf '\n== %s\n' "$title" && cat "$output"; } | print
}

# Runs pytest on tests with real processes, which the machine's load can fail: those that fail are left for run_again.
real_processes() {
  local code=0 failures
  failures=$(mktemp -p "$results/again")
  TRAINMASTER_TEST_FAILURES=$failures "${pytest[@]}" "$@" || code=$?
  # pytest's 1 is failed tests; anything else is a run that didn't come to its end.
  [ "$code" -eq 0 ] || { [ "$code" -eq 1 ] && [ -s "$failures" ]; }
}

# Runs each failed test once more, alone. One that passes now is flaky: a defect, but of no landing.
run_again() {
  local code=0 test flaky=()
  if [ "$#" -gt "$again_limit" ]; then
    printf 'Not run again: %s failed, and at most %s are.\n' "$#" "$again_limit"
    return 1
  fi
  for test in "$@"; do
    if "${pytest[@]}" "$test"; then flaky+=("$test"); else code=1; fi
  done
  [ "${#flaky[@]}" -gt 0 ] || return "$code"
  printf '\n!!!! FLAKY: %s\n' "${flaky[@]}"
  printf '!!!! Each failed above and passed alone. A flaky test is a defect, mostly the product'\''s: find out why.\n'
  [ "${#flaky[@]}" -le "$flaky_limit" ] || code=1
  return "$code"
}

# The processors' work, which leaves them to the other lanes where those need them.
computing() {
  renice -n 10 -p "$BASHPID" >/dev/null
  stage "fast: no process, no socket (make test-fast)" "${pytest[@]}" -n 2 tests/unit tests/mistakes/unit local/tests/unit
  stage "training loop (real torch processes)" real_processes -n 2 --dist worksteal -m "not slow" tests/trainer
}

# Each of pytest's processes has a cluster of its own.
waiting() {
  TRAINMASTER_TEST_RIGHTS=$results/rights stage "cluster (real operator, agents, kubectl, Helm)" \
    real_processes -n 4 --dist worksteal -m "not slow" --ignore "$recorded" tests/cluster local/tests/cluster
  # Only the whole suite asks for every right, and only the embedded cluster records what is asked for.
  if [ -z "${KUBEBUILDER_ASSETS:-}${TRAINMASTER_TEST_KUBECONFIG:-}" ]; then
    stage "the operator's rights" "$python" -m tests.rights "$results/rights"
  fi
  stage "processes and sockets" real_processes -n 4 --dist worksteal -m "not slow" tests/processes local/tests/processes
}

single() {
  stage "types" nice -n 10 make --no-print-directory types
  # One recording, in its order.
  stage "Kubernetes' recorded answers" "${pytest[@]}" "$recorded"
  # One cluster answers to all manifests at once.
  stage "mistakes and their sentences, offline and online" real_processes tests/mistakes/cluster
  stage "README's commands" real_processes -m "not slow" tests/e2e
}

# Once, before a dozen processes of pytest would each do it: what they import is compiled.
"${pytest[@]}" --collect-only tests local/tests >/dev/null 2>&1 &
stage "lint, import layers, generated files" make --no-print-directory lint generated
wait
# Job control, without which what runs in the background ignores Ctrl-C.
set -m
lanes=()
for lane in computing waiting single; do
  (trap 'exit 130' INT && "$lane") </dev/null &
  lanes+=("-$!")
done
set +m
trap 'kill -INT -- "${lanes[@]}"; wait; exit 130' INT TERM
wait
left_out="what needs a GPU (tests/gpu); make test-gpu, on a machine with one"
if [ "${TRAINMASTER_SLOW:-}" = 1 ]; then
  stage "soaks and repetitions" "${pytest[@]}" -m slow tests local/tests
else
  left_out+=". Soaks and repetitions (marker slow); TRAINMASTER_SLOW=1 runs them too, or make test-slow"
fi
mapfile -t again < <(sort "$results"/again/*)
[ "${#again[@]}" -eq 0 ] || stage "failed tests of real processes once more, each alone" run_again "${again[@]}"

printf '\n== how long each stage took; three lanes ran at once\n'
cat "$results/times"
printf '%5d s  all\n' "$SECONDS"
printf 'Left out: %s.\n' "$left_out"
[ ! -s "$results/failed" ] || { printf '\nThe run has failed:\n' && cat "$results/failed" && exit 1; }
