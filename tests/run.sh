#!/usr/bin/env bash
# The tests, in the order of what they cost. A failure in one stage doesn't hide the next one's; the last lines say how
# long each stage took and what was left out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
python=${VENV:-.venv}/bin/python
# What takes long is named, so that it is seen when a stage grows.
pytest=("$python" -m pytest -q -p no:cacheprovider --durations=10 --durations-min=4)
failed=0
recorded=local/tests/cluster/conformance/test_api.py
# Tests of real processes that may fail once and pass alone before the run fails, and those that are run again, in all
# stages together: of more the product is broken.
flaky_limit=2 again_limit=10
failures=$(mktemp)
types=$(mktemp)
# What the operators of the cluster tests ask the API server for.
rights=$(mktemp -d)
trap 'rm -rf "$failures" "$types" "$rights"' EXIT
# A line for each stage.
durations=()

# Runs a command as a stage, with its time; returns the command's exit code.
timed() {
  local title=$1 began=$SECONDS code=0
  shift
  printf '\n== %s\n' "$title"
  "$@" || code=$?
  durations+=("$(printf '%5d s  %s' $((SECONDS - began)) "$title")")
  return "$code"
}

stage() {
  local title=$1
  shift
  timed "$title" "$@" || failed=1
}

# Like stage, for pytest on tests with real processes, which the machine's load can fail: those that fail are left for
# run_again.
process_stage() {
  local title=$1 code=0 before
  shift
  before=$(wc -l <"$failures")
  TRAINMASTER_TEST_FAILURES=$failures timed "$title" "${pytest[@]}" "$@" || code=$?
  # pytest's 1 is failed tests; anything else is a run that didn't come to its end.
  [ "$code" -le 1 ] || failed=1
  [ "$code" -eq 0 ] || [ "$(wc -l <"$failures")" -gt "$before" ] || failed=1
}

# Called by stage. Waits for mypy, the process with this id.
# shellcheck disable=SC2329
types_are_right() {
  local code=0
  wait "$1" || code=$?
  cat "$types"
  return "$code"
}

# Called by stage. Runs each failed test once more, alone. One that passes now is flaky: a defect, but of no landing.
# shellcheck disable=SC2329
run_again() {
  local tests test flaky=()
  mapfile -t tests <"$failures"
  if [ "${#tests[@]}" -gt "$again_limit" ]; then
    printf 'Not run again: %s failed, and at most %s are.\n' "${#tests[@]}" "$again_limit"
    return 1
  fi
  for test in "${tests[@]}"; do
    if "${pytest[@]}" "$test"; then flaky+=("$test"); else failed=1; fi
  done
  [ "${#flaky[@]}" -gt 0 ] || return 0
  printf '\n!!!! FLAKY: %s\n' "${flaky[@]}"
  printf '!!!! Each failed above and passed alone. A flaky test is a defect, mostly the product'\''s: find out why.\n'
  [ "${#flaky[@]}" -le "$flaky_limit" ]
}

stage "lint, import layers, generated files" make --no-print-directory lint generated
# mypy is one process, and takes as long as the fast tests do.
make --no-print-directory types >"$types" 2>&1 &
stage "fast: no process, no socket (make test-fast)" "${pytest[@]}" -n 2 tests/unit tests/mistakes/unit local/tests/unit
stage "types, beside the fast tests" types_are_right $!
process_stage "processes and sockets" -n 2 -m "not slow" tests/processes local/tests/processes
process_stage "training loop (real torch processes)" -n 2 -m "not slow" tests/trainer
# One recording, in its order.
stage "Kubernetes' recorded answers" "${pytest[@]}" "$recorded"
# One cluster answers to all manifests at once.
process_stage "mistakes and their sentences, offline and online" tests/mistakes/cluster
# Mostly waiting: each of three processes has a cluster of its own.
TRAINMASTER_TEST_RIGHTS=$rights process_stage "cluster (real operator, agents, kubectl, Helm)" -n 3 --dist worksteal \
  -m "not slow" --ignore "$recorded" tests/cluster local/tests/cluster
# Only the whole suite asks for every right, and only the embedded cluster records what is asked for.
if [ -z "${KUBEBUILDER_ASSETS:-}${TRAINMASTER_TEST_KUBECONFIG:-}" ]; then
  stage "the operator's rights" "$python" -m tests.rights "$rights"
fi
process_stage "README's commands" -m "not slow" tests/e2e
left_out=
if [ "${TRAINMASTER_SLOW:-}" = 1 ]; then
  stage "soaks and repetitions" "${pytest[@]}" -m slow tests local/tests
else
  left_out="soaks and repetitions (marker slow); TRAINMASTER_SLOW=1 runs them too, or make test-slow"
fi
[ ! -s "$failures" ] || stage "failed tests of real processes once more, each alone" run_again

printf '\n== how long each stage took\n'
printf '%s\n' "${durations[@]}"
printf '%5d s  all\n' "$SECONDS"
[ -z "$left_out" ] || printf 'Left out: %s.\n' "$left_out"
[ "$failed" -eq 0 ] || printf '\nThe run has failed.\n'
exit "$failed"
