#!/usr/bin/env bash
# The tests. Those of a cluster mostly wait, and all others compute, so the two are run beside each other, in two lanes; a
# line of the cluster's lane begins with "| ". A failure in one stage doesn't hide the next one's; the last lines say how
# long each stage took and what was left out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
python=${VENV:-.venv}/bin/python
pytest=("$python" -m pytest -q -p no:cacheprovider)
recorded=local/tests/cluster/conformance/test_api.py
# Tests of real processes that may fail once and pass alone before the run fails, and those that are run again, in all
# stages together: of more the product is broken.
flaky_limit=2 again_limit=10
# What the lanes leave: a line in `durations` for each stage, a file in `failures` for each pytest with the tests of real
# processes that failed, and `failed` when the run has.
left=$(mktemp -d)
mkdir "$left/failures"
# What the operators of the cluster tests ask the API server for.
rights=$(mktemp -d)
trap 'rm -rf "$left" "$rights"' EXIT

fail() { touch "$left/failed"; }

# Runs a command as a stage, with its time; returns the command's exit code.
timed() {
  local title=$1 began=$SECONDS code=0
  shift
  printf '\n== %s\n' "$title"
  "$@" || code=$?
  printf '%5d s  %s\n' $((SECONDS - began)) "$title" >>"$left/durations"
  return "$code"
}

stage() {
  local title=$1
  shift
  timed "$title" "$@" || fail
}

# Like stage, for pytest on tests with real processes, which the machine's load can fail: those that fail are left for
# run_again.
process_stage() {
  local title=$1 code=0 failures
  shift
  failures=$(mktemp "$left/failures/XXXXXX")
  TRAINMASTER_TEST_FAILURES=$failures timed "$title" "${pytest[@]}" "$@" || code=$?
  # pytest's 1 is failed tests; anything else is a run that didn't come to its end.
  [ "$code" -le 1 ] || fail
  [ "$code" -eq 0 ] || [ -s "$failures" ] || fail
}

# Called by stage. Runs each failed test once more, alone. One that passes now is flaky: a defect, but of no landing.
# shellcheck disable=SC2329
run_again() {
  local tests test flaky=()
  mapfile -t tests < <(cat "$left"/failures/*)
  if [ "${#tests[@]}" -gt "$again_limit" ]; then
    printf 'Not run again: %s failed, and at most %s are.\n' "${#tests[@]}" "$again_limit"
    return 1
  fi
  for test in "${tests[@]}"; do
    if "${pytest[@]}" "$test"; then flaky+=("$test"); else fail; fi
  done
  [ "${#flaky[@]}" -gt 0 ] || return 0
  printf '\n!!!! FLAKY: %s\n' "${flaky[@]}"
  printf '!!!! Each failed above and passed alone. A flaky test is a defect, mostly the product'\''s: find out why.\n'
  [ "${#flaky[@]}" -le "$flaky_limit" ]
}

# What waits has deadlines, so what computes gives way to it. A process of pytest's that is done takes tests from another
# one (worksteal): long ones are beside each other.
computing() {
  pytest=(nice -n 5 "${pytest[@]}")
  stage "lint, types, import layers, generated files" nice -n 5 make --no-print-directory lint types generated
  stage "fast: no process, no socket (make test-fast)" "${pytest[@]}" -n 2 tests/unit tests/mistakes/unit local/tests/unit
  process_stage "processes and sockets" -n 2 --dist worksteal tests/processes local/tests/processes
  process_stage "training loop (real torch processes)" -n 2 --dist worksteal -m "not slow" tests/trainer
}

waiting() {
  # Each of three processes has a cluster of its own.
  TRAINMASTER_TEST_RIGHTS=$rights process_stage "cluster (real operator, agents, kubectl, Helm)" -n 3 --dist worksteal \
    -m "not slow" --ignore "$recorded" tests/cluster local/tests/cluster
  # Only the whole suite asks for every right, and only the embedded cluster records what is asked for.
  if [ -z "${KUBEBUILDER_ASSETS:-}${TRAINMASTER_TEST_KUBECONFIG:-}" ]; then
    stage "the operator's rights" "$python" -m tests.rights "$rights"
  fi
  # One recording, in its order.
  stage "Kubernetes' recorded answers" "${pytest[@]}" "$recorded"
  # One cluster answers to all manifests at once.
  process_stage "mistakes and their sentences, offline and online" tests/mistakes/cluster
  process_stage "README's commands" -m "not slow" tests/e2e
}

waiting 2>&1 | while IFS= read -r line; do printf '| %s\n' "$line"; done &
(computing)
wait
left_out=
if [ "${TRAINMASTER_SLOW:-}" = 1 ]; then
  stage "soaks" "${pytest[@]}" -m slow tests local/tests
else
  left_out="the soaks (marker slow); TRAINMASTER_SLOW=1 runs them too, or make test-slow"
fi
[ -z "$(find "$left/failures" -type f -size +0)" ] ||
  stage "failed tests of real processes once more, each alone" run_again

printf '\n== how long each stage took\n'
cat "$left/durations"
printf '%5d s  all\n' "$SECONDS"
[ -z "$left_out" ] || printf 'Left out: %s.\n' "$left_out"
[ ! -e "$left/failed" ] || { printf '\nThe run has failed.\n' && exit 1; }
