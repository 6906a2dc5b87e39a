"""`history.upkeep.Trimming` keeps the file below its limit, drops old jobs first, and protects the jobs of others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Answers, Recorded, job, key, sample
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.upkeep import Trimming
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import DeletedRecord, EvidenceRecord, LogRecord
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobIdentity

DAY = 86_400.0
KIB = 1024


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    found = Recorded(tmp_path)
    yield found
    found.store.close()


def _trim(recorded: Recorded, max_bytes: int = 10**9, *, shared: bool = True) -> int:
    """Runs all due steps, and returns their number."""
    trimming, steps = Trimming(recorded.store, max_bytes, 90.0), 0
    if not shared:
        trimming._share = max_bytes
    while trimming.step():
        steps += 1
        assert steps < 20_000
    recorded.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return steps


def _noise(size: int) -> str:
    return random.Random(size).randbytes(size // 2).hex()


def _add(recorded: Recorded, of: JobIdentity, *, ended: float | None, samples: int = 120, ranks: int = 20) -> None:
    """Records a job with curves, a log and evidence."""
    status = {} if ended is None else {"phase": "Succeeded", "completionTime": to_text(ended)}
    chance = random.Random(of.uid)
    recorded.store.record(
        [
            job(START, of, **status, selector=_noise(40 * KIB)),
            *(
                sample(
                    START + n,
                    of,
                    ranks=ranks,
                    step_seconds=[chance.random() for _ in range(ranks)],
                    loss=[chance.random()] * ranks,
                )
                for n in range(samples)
            ),
            LogRecord(START, of, 0, KeptLog((_noise(20 * KIB),))),
            EvidenceRecord(START, of, 1, AttemptEvidence(1, logs={0: _noise(20 * KIB)}).to_json()),
        ]
    )
    recorded.age()


def _left(recorded: Recorded) -> dict[str, tuple[bool, bool]]:
    """Returns the names of the jobs whose curves and logs are left."""
    with Answers(recorded.file) as answers:
        names = [item["name"] for item in answers.jobs()["items"]]
        return {
            name: (
                bool(answers.series("team", name, "", TimeWindow(), 1000)["at"]),
                bool(answers.logs("team", name)["items"] or answers.evidence("team", name)["items"]),
            )
            for name in sorted(names)
        }


def test_old_jobs_go_and_those_that_live_stay(recorded: Recorded) -> None:
    now = recorded.clock.now = START + 100 * DAY
    _add(recorded, key("old", "1"), ended=now - 91 * DAY)
    _add(recorded, key("young", "2"), ended=now - 89 * DAY)
    # It ended early, and was deleted long after its end.
    _add(recorded, key("kept", "3"), ended=now - 95 * DAY)
    recorded.store.record([DeletedRecord(now - 10 * DAY, key("kept", "3"))])
    recorded.store.record([job(now - DAY, key("runs", "4"), phase="Running")])
    recorded.store.record([job(now - 91 * DAY, key("lost", "5"), phase="Running")])
    _trim(recorded)
    assert sorted(_left(recorded)) == ["kept", "runs", "young"]
    for table in ("blocks", "evidence", "logs", "attempts", "objects"):
        found = {job for (job,) in recorded.store.connection.execute(f"SELECT DISTINCT job FROM {table}")}
        assert found <= {job for (job,) in recorded.store.connection.execute("SELECT id FROM jobs")}, table


def test_what_is_missed_least_goes_first_and_the_file_shrinks(recorded: Recorded) -> None:
    recorded.clock.now = START + 1_000
    names = [f"job-{number}" for number in range(6)]
    for number, name in enumerate(names):
        # The later jobs ended earlier.
        _add(recorded, key(name, name), ended=START + 900 - number)
    _add(recorded, key("runs", "runs"), ended=None)
    everything = dict.fromkeys((*names, "runs"), (True, True))
    recorded.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before, limits = recorded.file.stat().st_size, []
    assert _left(recorded) == everything
    seen = []
    for share in range(97, 5, -6):
        limit = int(before * share / 100)
        _trim(recorded, limit, shared=False)
        limits.append(recorded.file.stat().st_size <= limit or not any(sum(_left(recorded).values(), ())))
        found = _left(recorded)
        if not seen or seen[-1] != found:
            seen.append(found)
    assert all(limits)
    # The oldest jobs' curves are dropped one by one, then logs and evidence, then whole jobs.
    lost_curves = next(found for found in seen if found["job-5"] == (False, True))
    assert lost_curves["job-0"] == (True, True) and lost_curves["runs"] == (True, True)
    lost_logs = next(found for found in seen if found.get("job-5") == (False, False))
    assert all(not lost_logs[name][0] for name in names) and lost_logs["runs"] == (True, True)
    gone = next(found for found in seen if "job-5" not in found)
    assert "job-0" in gone and gone["runs"][0]


def test_a_job_takes_no_more_than_its_share(recorded: Recorded) -> None:
    recorded.clock.now = START + 10_000
    _add(recorded, key("small", "1"), ended=START + 1)
    before = _left(recorded)
    chance = random.Random(4_096)
    large, limit = key("large", "2"), 16 * 1024 * KIB
    recorded.store.record([job(START, large, phase="Running")])
    for first in range(0, 36, 12):
        batch = [
            sample(START + first + n, large, ranks=4_096, step_seconds=[chance.random() for _ in range(4_096)])
            for n in range(12)
        ]
        recorded.store.record(batch)
        recorded.age()
    for worker in range(64):
        recorded.store.record([LogRecord(START, large, worker, KeptLog((_noise(64 * KIB),)))])
    _trim(recorded, limit)
    sizes = dict(recorded.store.connection.execute("SELECT name, bytes FROM jobs"))
    assert sizes["large"] <= limit / 16 and recorded.file.stat().st_size <= limit
    assert {name: found for name, found in _left(recorded).items() if name == "small"} == before


@pytest.mark.parametrize("ended", [START + 900, None])
def test_a_namespace_that_makes_jobs_without_end_takes_nothing_from_the_others(
    recorded: Recorded, ended: float | None
) -> None:
    recorded.clock.now = START + 1_000
    _add(recorded, key("old", "1"), ended=START + 1)
    for number in range(120):
        # The jobs have one of two names, and contain only specs.
        status = {} if ended is None else {"phase": "Failed", "completionTime": to_text(ended)}
        flood = key(f"again-{number % 2}", f"flood-{number}", "flood")
        recorded.store.record([job(START, flood, **status, selector=_noise(64 * KIB))])
    recorded.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _trim(recorded, recorded.file.stat().st_size // 2)
    with Answers(recorded.file) as answers:
        assert answers.series("team", "old", "", TimeWindow(), 1000)["at"] and answers.logs("team", "old")["items"]
        assert answers.jobs("flood")["items"], "nor does it lose all"


def test_nothing_is_done_where_nothing_is_due(recorded: Recorded) -> None:
    _add(recorded, key(), ended=None, samples=10)
    assert _trim(recorded) == 0
