"""Measures what a history costs: CPU and bytes for many jobs, and how long its readers wait.

    python -m bench.history [JOBS [SECONDS]]

For SECONDS the real process receives records of JOBS jobs of 4 ranks, as an operator sends them: samples every 2 s, and
each job's status every 5 s (samples are first packed after two minutes). Meanwhile a viewer reads curves. The API
server is a fake. Then a store alone records a day of a few jobs with a simulated clock, to measure the bytes of an hour
and the answers about long and large jobs. These are in processor time, which other programs don't affect.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import table
from tests.processes.history.history_process import history, reviews
from trainmaster.history.answers import Answers
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.store import HistoryStore
from trainmaster.history.upkeep import Aging
from trainmaster_operator.api.records import JobIdentity, JobRecord, Record, SampleRecord

CPU_LIMIT, MEMORY_LIMIT = 0.25, 150.0
KILOBYTES_LIMIT, SERIES_LIMIT, HEAT_LIMIT = 100.0, 0.2, 0.5
START = 1_800_000_000.0
# The times that don't grow while a job trains.
SPENT = {"load": 12.345, "rendezvous": 3.21, "schedule": 1.5, "recompute": 40.25, "restart": 2.125}


def key(number: int) -> JobIdentity:
    """Returns a job's identity."""
    return JobIdentity("bench", f"job-{number}", f"3f1d6c1e-0000-4000-8000-{number:012d}")


def sample(at: float, number: int, step: int, ranks: int = 4) -> SampleRecord:
    """Returns a job's sample, with figures as noisy as real ones."""
    loss = 2.0 + 8.0 / (1 + step / 100)
    columns = {
        "step": [step] * ranks,
        "loss": [round(random.gauss(loss, 0.05), 4) for _ in range(ranks)],
        "learning_rate": [3e-4] * ranks,
        "gradient_norm": [round(random.lognormvariate(0, 0.2), 4)] * ranks,
        "samples_per_second": [round(random.gauss(120, 3), 2) for _ in range(ranks)],
        "step_seconds": [round(random.gauss(0.52, 0.02), 4) for _ in range(ranks)],
    }
    return SampleRecord(at, key(number), 1, tuple(range(ranks)), tuple(rank // 2 for rank in range(ranks)), columns)


def job(at: float, number: int, step: int) -> JobRecord:
    """Returns a job with its status, as large as real ones (3 KB)."""
    identity = key(number)
    metadata = {"namespace": identity.namespace, "name": identity.name, "uid": identity.uid}
    variables = [{"name": f"NCCL_OPTION_{option}", "value": f"{option}"} for option in range(30)]
    container = {"name": "trainer", "env": variables, "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    spec = {"workers": 2, "command": ["python", "train.py"], "podTemplate": {"spec": {"containers": [container]}}}
    progress = {"step": step, "totalSteps": 10**6, "loss": random.gauss(2, 0.1), "goodput": random.random()}
    status = {
        "phase": "Running",
        "attempt": 1,
        "attemptStartTime": "2026-11-26T03:00:01.000Z",
        "startTime": "2026-11-26T03:00:00.000Z",
        "conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "2026-11-26T03:00:09Z"}],
        "progress": progress,
        "timeSpent": {"productive": round(step * 1.91, 3), "data": round(step * 0.07, 3), **SPENT},
        "failures": [],
    }
    when = {"creationTimestamp": "2026-11-26T03:00:00Z"}
    return JobRecord(
        at, {"kind": "DistributedTrainingJob", "metadata": metadata | when, "spec": spec, "status": status}
    )


def load(jobs: int, seconds: float) -> list[list[object]]:
    """Returns the rows about a process under load."""
    written, waited = [], []
    with tempfile.TemporaryDirectory() as folder, reviews() as server, history(Path(folder), server.url) as found:
        process = psutil.Process(found.process.pid)
        found.post([job(time.time(), number, 0) for number in range(jobs)])
        before, started = process.cpu_times(), time.monotonic()
        second = 0
        while time.monotonic() - started < seconds:
            at = time.time()
            records: list[Record] = [sample(at, number, second) for number in range(second % 2, jobs, 2)]
            records += [job(at, number, second) for number in range(second % 5, jobs, 5)]
            began = time.monotonic()
            assert found.post(records)[0] == 200
            written.append(time.monotonic() - began)
            if second % 5 == 4:
                began = time.monotonic()
                assert found.get(f"/v1/namespaces/bench/jobs/job-{second % jobs}/series")[0] == 200
                waited.append(time.monotonic() - began)
            second += 1
            time.sleep(max(0.0, started + second - time.monotonic()))
        after, passed = process.cpu_times(), time.monotonic() - started
        memory = process.memory_info().rss / 1e6
    share = (after.user + after.system - before.user - before.system) / passed
    return [
        ["CPU (cores)", share, CPU_LIMIT],
        ["memory (MB)", memory, MEMORY_LIMIT],
        ["a second's batch on the disk, median (s)", statistics.median(written), ""],
        ["the slowest batch (s)", max(written), ""],
        ["curves of a job meanwhile, median (s)", statistics.median(waited), SERIES_LIMIT],
    ]


def filled(folder: Path, *, jobs: int, hours: float, ranks: int = 4, each: float = 2.0) -> tuple[Path, float]:
    """Returns a file with this many hours of each job, and its size in kB for each job and hour."""
    clock, file = [START], folder / f"{jobs}-{ranks}.sqlite"
    store = HistoryStore(file, lambda: clock[0])
    store.connection.execute("PRAGMA synchronous = OFF")
    aging = Aging(store)
    store.record([job(START, number, 0) for number in range(jobs)])
    for minute in range(int(hours * 30)):
        batch: list[Record] = []
        for number in range(int(120 / each)):
            clock[0] += each
            step = minute * int(120 / each) + number
            batch += [sample(clock[0], of, step, ranks) for of in range(jobs)]
            if number % 3 == 0:
                batch += [job(clock[0], of, step) for of in range(jobs)]
        store.record(batch)
        while aging.step(at_once=True):
            pass
    used = store.used()
    store.close()
    return file, used / 1e3 / jobs / hours


def waits(ask: Callable[[], Any]) -> float:
    """Returns the median processor time that an answer and its JSON take (seconds)."""
    times = []
    for _ in range(5):
        began = time.process_time()
        ask().model_dump_json(by_alias=True)
        times.append(time.process_time() - began)
    return statistics.median(times)


def alone() -> list[list[object]]:
    """Returns the rows about a store alone: its bytes and answers."""
    where = ("bench", "job-0", "")
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        _, young = filled(Path(name), jobs=20, hours=1)
        rows.append(["kB of a job's first hour", young, KILOBYTES_LIMIT])
        file, day = filled(Path(name), jobs=2, hours=24)
        rows.append(["kB of each hour of a day", day, KILOBYTES_LIMIT])
        with closing((answers := Answers(file)).connection):
            whole = waits(lambda: answers.series(*where, TimeWindow(), 1000))
            last = waits(lambda: answers.series(*where, TimeWindow(START + 23 * 3600), 1000))
            heat = waits(lambda: answers.heat(*where, TimeWindow(), 240, "stepSeconds"))
        rows += [["curves of a day (s)", whole, SERIES_LIMIT], ["curves of its last hour (s)", last, SERIES_LIMIT]]
        rows.append(["heat of a day (s)", heat, HEAT_LIMIT])
        file, large = filled(Path(name), jobs=1, hours=1, ranks=1_024)
        with closing((answers := Answers(file)).connection):
            heat = waits(lambda: answers.heat(*where, TimeWindow(), 240, "stepSeconds"))
        rows += [["heat of an hour of 1,024 ranks (s)", heat, HEAT_LIMIT], ["kB of that hour", large, ""]]
    return rows


def main(arguments: list[str]) -> int:
    """Prints the table; returns 1 if a limit is exceeded."""
    jobs = int(arguments[0]) if arguments else 1_000
    seconds = float(arguments[1]) if len(arguments) > 1 else 180.0
    rows = [*load(jobs, seconds), *alone()]
    shown = [[what, value, limit, "" if limit == "" else f"{value / limit:.2f}"] for what, value, limit in rows]  # type: ignore[operator]
    table(
        f"A history of {jobs:,} jobs x 4 ranks each 2 s, for {seconds:g} s", ["", "measured", "limit", "of it"], shown
    )
    return int(any(limit != "" and value > limit for _, value, limit in rows))  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
