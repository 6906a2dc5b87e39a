#!/usr/bin/env bash
# The tests, in the order of what they cost. A failure in one stage doesn't hide the next one's.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
pytest=("${VENV:-.venv}/bin/python" -m pytest -q -p no:cacheprovider)
failed=0
recorded=tests/cluster/conformance/test_api.py

stage() {
  local title=$1
  shift
  printf '\n== %s\n' "$title"
  "${pytest[@]}" "$@" || failed=1
}

stage "unit and property tests, agents as real processes" -n 2 tests/unit
stage "training loop (real torch processes)" -n 2 -m "not slow" tests/trainer
# One recording, in its order.
stage "Kubernetes' recorded answers" "$recorded"
# Mostly waiting: each of three processes has a cluster of its own.
stage "cluster (real operator, agents, kubectl, Helm)" -n 3 --dist worksteal -m "not slow" --ignore "$recorded" tests/cluster
stage "README's commands" -m "not slow" tests/e2e

if [ "${TRAINMASTER_SLOW:-}" = 1 ]; then
  stage "soaks" -m slow tests
else
  printf '\nLeft out: the soaks (marker slow); TRAINMASTER_SLOW=1 runs them too, or make test-slow.\n'
fi
exit "$failed"
