"""Measures what an assignment's signature costs: signing, verifying by an agent, and room in annotations.

    python -m bench.signing

The table shows processor time, so that other programs don't count. "first" is an agent's first attempt, including
hashlib's import, in a separate process. "again" is any later attempt. "same" is the same assignment over another route,
which isn't verified again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from tests.signer import JOB, JOB_UID, KEYS, NAMESPACE, environment
from trainmaster_operator.agent.authority import Authority
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.wire.assignment import Assignment, port_at
from trainmaster_operator.wire.signing import canonical

TRIES = 50
LIMIT_MILLISECONDS = 15.0
FIRST = """
import json, sys, time
from trainmaster_operator.agent import executor, settings
environ, data = json.loads(sys.stdin.read())
before = time.process_time()
from trainmaster_operator.agent.authority import Authority
Authority(settings.read_settings(environ)).read(data)
print(time.process_time() - before)
"""


def assignment(attempt: int, workers: int) -> Assignment:
    """Returns an attempt's assignment, with the uids of its pods."""
    return Assignment(
        job=JOB_UID,
        attempt=attempt,
        workers=tuple(range(workers)),
        uids=tuple(f"3f1d6c1e-0000-4000-8000-{worker:012d}" for worker in range(workers)),
        hosts=tuple(f"{JOB}-{worker}.{JOB}.{NAMESPACE}.svc" for worker in range(workers)),
        port=port_at(attempt),
    )


def milliseconds(work: Callable[[int], object]) -> float:
    """Returns the median milliseconds of several tries."""
    times = []
    for number in range(TRIES):
        started = time.process_time()
        work(number)
        times.append(time.process_time() - started)
    return statistics.median(times) * 1e3


def first(environ: dict[str, str], data: object) -> float:
    """Returns the milliseconds in a process that has verified nothing yet."""
    given = json.dumps([environ, data])
    command = [sys.executable, "-c", FIRST]
    done = [subprocess.run(command, input=given, capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(one.stdout) for one in done) * 1e3


def main() -> int:
    """Prints the table; returns 1 if an assignment costs more than the limit."""
    environ = {**environment(), "TRAINMASTER_WORKER": "0"}
    print(
        f"{'workers':>7}  {'sign':>7}  {'first':>7}  {'again':>7}  {'same':>7}  {'sum':>7}  {'bytes':>9}  {'signed':>9}"
    )
    worst = 0.0
    for workers in (1, 2, 64, 1_024):
        attempts = [assignment(attempt, workers) for attempt in range(1, TRIES + 1)]
        # Each try has a different key, so that no signature is cached.
        signers = [SigningKeys(KEYS.private, bytes([number]) * 32) for number in range(TRIES)]
        sign = milliseconds(lambda number, of=attempts, by=signers: by[number].sign(of[number]))
        texts = [KEYS.sign(one) for one in attempts]
        data = [json.loads(text) for text in texts]
        agent = Authority(read_settings(environ))
        again = milliseconds(lambda number, of=data, by=agent: by.read(of[number]))
        same = milliseconds(lambda _, of=data, by=agent: by.read(of[-1]))
        cold = first(environ, data[0])
        worst = max(worst, sign + cold)
        size = len(canonical(attempts[0].to_wire()))
        print(
            f"{workers:>7}  {sign:>4.2f} ms  {cold:>4.1f} ms  {again:>4.2f} ms  {same:>4.2f} ms  {sign + cold:>4.1f} ms"
            f"  {size:>7} B  {len(texts[0]):>7} B"
        )
    print(f"worst {worst:.1f} ms, limit {LIMIT_MILLISECONDS:g} ms an assignment")
    return 1 if worst > LIMIT_MILLISECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
