#!/usr/bin/env bash
# Which cluster tests fail now and then? tests/flaky.sh [ROUNDS] runs them all, round after round, beside two busy
# processes, and names each test that failed with its round. The exit code is 1 when one did.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
rounds=${1:-5}
failures=$(mktemp)
busy=()
trap 'kill "${busy[@]}" 2>/dev/null; rm -f "$failures"' EXIT
for _ in 1 2; do
  while :; do :; done &
  busy+=("$!")
done
found=()
# One recording, in its order: it fails where it is dealt out to several processes.
recorded=local/tests/cluster/conformance/test_api.py
for ((round = 1; round <= rounds; round++)); do
  printf '\n== round %s of %s\n' "$round" "$rounds"
  began=$SECONDS code=0
  : >"$failures"
  TRAINMASTER_TEST_FAILURES=$failures "${VENV:-.venv}/bin/python" -m pytest -q -p no:cacheprovider -n 4 --dist worksteal \
    -m "not slow" --ignore "$recorded" tests/cluster local/tests/cluster || code=$?
  while read -r test; do found+=("round $round: $test"); done <"$failures"
  # pytest's 1 is failed tests; anything else is a run that didn't come to its end.
  [ "$code" -eq 0 ] || [ -s "$failures" ] || found+=("round $round: pytest ended with exit code $code")
  printf '(%s s)\n' $((SECONDS - began))
done
printf '\n== failed in %s rounds: %s\n' "$rounds" "${#found[@]}"
[ "${#found[@]}" -eq 0 ] || printf '%s\n' "${found[@]}"
[ "${#found[@]}" -eq 0 ]
