"""`history.schema` accounts for the bytes of jobs and namespaces, and the sums match the file after any writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.history.recorded import START, Recorded, job, key, sample
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import EvidenceRecord, LogRecord, PodPlace
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobIdentity

Write = Callable[[Recorded, JobIdentity, random.Random], None]


def _noise(chance: random.Random, size: int) -> str:
    return chance.randbytes(size // 2).hex()


def _attempts(recorded: Recorded, of: JobIdentity, chance: random.Random) -> None:
    records, failures = [], list[dict[str, Any]]()
    for attempt in range(1, 30):
        failure = {"attempt": attempt, "reason": "Error", "message": _noise(chance, 1_900), "counted": True}
        pods = [PodPlace(worker, f"{of.name}-{worker}", f"node-{chance.random()}") for worker in range(20)]
        records.append(job(START + attempt, of, pods, phase="Running", attempt=attempt, failures=failures))
        failures = [failure, *failures][:10]
        records.append(job(START + attempt, of, phase="Restarting", attempt=attempt, failures=failures))
    recorded.store.record(records)


def _texts(recorded: Recorded, of: JobIdentity, chance: random.Random) -> None:
    for number in range(12):
        size = int(10 ** chance.uniform(2, 5))
        evidence = AttemptEvidence(number, logs={0: _noise(chance, size)}).to_json()
        recorded.store.record([EvidenceRecord(START, of, number, evidence)])
        recorded.store.record([LogRecord(START, of, number, KeptLog((_noise(chance, size),)))])


def _figures(recorded: Recorded, of: JobIdentity, chance: random.Random) -> None:
    for first in range(0, 600, 60):
        recorded.store.record(
            sample(START + first + n, of, loss=[chance.random()] * 2, step_seconds=[chance.random()] * 2)
            for n in range(60)
        )
        recorded.age()


def _spec(recorded: Recorded, of: JobIdentity, chance: random.Random) -> None:
    recorded.store.record([job(START, of, phase="Running", selector=_noise(chance, int(10 ** chance.uniform(1, 5))))])


@pytest.mark.parametrize("write", [_attempts, _texts, _figures, _spec])
def test_the_sum_of_the_books_is_the_file(tmp_path: Path, write: Write) -> None:
    recorded, chance = Recorded(tmp_path), random.Random(3)
    recorded.clock.now = START + 1_000
    empty = recorded.store.used()
    for number in range(400 if write is _spec else 15):
        of = key(f"job-{number}", f"3f1d6c1e-0000-4000-8000-{number:012d}", f"team-{number % 3}")
        write(recorded, of, chance)
    execute = recorded.store.connection.execute
    for statement in ("SELECT 1", "DELETE FROM attempts WHERE attempt % 3 = 0", "DELETE FROM logs WHERE key > 6"):
        execute(statement)
        total = execute("SELECT sum(bytes) FROM jobs").fetchone()[0]
        assert dict(execute("SELECT name, bytes FROM namespaces")) == dict(
            execute("SELECT namespace, sum(bytes) FROM jobs GROUP BY namespace")
        )
        # Deletions leave pages that are less full than before.
        least = 0.8 if statement == "SELECT 1" else 0.6
        assert least < total / (recorded.store.used() - empty) < 1.25, (statement, total)
    recorded.store.close()


def test_nothing_is_left_in_the_books_of_what_is_gone(tmp_path: Path) -> None:
    recorded, chance = Recorded(tmp_path), random.Random(4)
    recorded.clock.now = START + 1_000
    for write in (_attempts, _texts, _figures, _spec):
        write(recorded, key(), chance)
    execute = recorded.store.connection.execute
    for table in ("blocks", "evidence", "logs", "attempts", "metrics", "objects"):
        execute(f"DELETE FROM {table}")
    summary, total = execute("SELECT summary, bytes FROM jobs").fetchone()
    assert total == 700 + len(summary) * 10 // 9
    execute("DELETE FROM jobs")
    assert execute("SELECT * FROM namespaces").fetchall() == []
    recorded.store.close()


def test_failed_attempts_of_a_namespace_take_nothing_from_another(tmp_path: Path) -> None:
    """They used not to count, so the other namespace seemed the largest, and its log was deleted."""
    from trainmaster.history.upkeep import Trimming

    recorded, chance, most = Recorded(tmp_path), random.Random(5), 2 * 1024 * 1024
    recorded.clock.now = START + 1_000
    for number in range(4):
        good = key(f"good-{number}", f"good-{number}", "good")
        recorded.store.record([job(START, good, phase="Succeeded", completionTime=to_text(START + 1))])
        recorded.store.record([LogRecord(START, good, 0, KeptLog((_noise(chance, 100_000),)))])
    trimming = Trimming(recorded.store, most, 90.0)
    for number in range(25):
        _attempts(recorded, key(f"job-{number}", f"uid-{number}", "hostile"), chance)
        while trimming.is_over() and trimming.step():
            pass
    assert recorded.store.used() <= most
    [(log,)] = recorded.store.connection.execute("SELECT count(*) FROM logs").fetchall()
    assert log == 4
    recorded.store.close()
