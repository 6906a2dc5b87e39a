"""`recording.recorder` decides what to record of jobs, when and how often, and never raises an error."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.unit.controller import builders as b
from tests.unit.controller.polling import until
from tests.unit.controller.virtual_time import in_virtual_time
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import (
    DeletedRecord,
    EvidenceRecord,
    JobRecord,
    LogRecord,
    PodPlace,
    Record,
    SampleRecord,
    SystemRecord,
    parse_record,
)
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Unavailable
from trainmaster_operator.controller.cache.large_jobs import LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.recording import recorder as module
from trainmaster_operator.controller.recording.outbox import Outbox, WaitingRecord
from trainmaster_operator.controller.recording.recorder import HistoryRecorder
from trainmaster_operator.controller.recording.sender import Sender
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import ProgressLine, SystemLine
from trainmaster_operator.wire.system import SystemSample

IDENTITY = JobIdentity(b.NAMESPACE, "bert", b.JOB_UID)


class Unsent:
    """Stands for a sender, and sends nothing."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def finish(self) -> None:
        return None


class World(BaseWorld):
    """World is a recorder whose records nobody sends, with a store and an API server in memory."""

    def __init__(self, *, seconds: float = 2.0, limit: int = 1_000_000) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self.outbox = Outbox(lambda outcome, records: self.counted.update({outcome: records}), limit)
        self.thread = LargeJobThread()
        sender = cast(Sender, Unsent())
        self.recorder = HistoryRecorder(
            self.outbox, sender, self.cluster, self.store, (), self.thread, seconds=seconds, now=lambda: 5.0
        )

    def write_status(self, **status: Any) -> None:
        self.recorder.written(self.put(JOBS, b.job(status=status)))

    def report(self, worker: int, attempt: int = 1, at: float = 1.0, **ranks: dict[str, Any]) -> None:
        """Lets a worker report; the ranks are given as `r0={"step": 3}`."""
        progress = {int(rank[1:]): RankProgress(**fields) for rank, fields in ranks.items()}
        line = ProgressLine(attempt=attempt, worker=worker, ranks=progress)
        self.store.record_progress(KEY, line, at, most_ranks=10_000)

    def records(self) -> list[Record]:
        """Returns the records since the last call."""
        found = [parse_record(json.loads(entry.line)) for entry in self.outbox.take(1_000_000_000)]
        self.outbox.done()
        return found

    def samples(self) -> list[SampleRecord]:
        return [record for record in self.records() if isinstance(record, SampleRecord)]

    @asynccontextmanager
    async def started(self) -> AsyncIterator[World]:
        self.recorder.start()
        try:
            yield self
        finally:
            await self.recorder.close()
            await self.thread.close()


@in_virtual_time
async def test_a_job_is_recorded_when_its_status_was_written_with_where_its_pods_are() -> None:
    world = World()
    world.put(JOBS, b.job())
    world.put(STATEFUL_SETS, b.child("StatefulSet"))
    world.put(PODS, b.pod(1))
    world.put(PODS, b.pod(0))
    world.put(PODS, b.pod(0, name="other"))
    world.write_status(phase="Running", attempt=1)
    (record,) = world.records()
    assert isinstance(record, JobRecord) and record.key == IDENTITY and record.at == 5.0
    assert record.job["status"] == {"phase": "Running", "attempt": 1} and record.job["spec"]["workers"] == 2
    assert record.pods == (PodPlace(0, "bert-0", "node-1"), PodPlace(1, "bert-1", "node-1"))


@in_virtual_time
async def test_what_a_watch_shows_is_recorded_where_the_spec_has_changed_and_once() -> None:
    world = World()
    stored = world.put(JOBS, b.job())
    world.recorder.watched(stored)
    assert world.records() == [], "its status is about to be written; after a start, thousands come at once"
    world.recorder.written(stored)
    world.recorder.watched(stored)
    assert len(world.records()) == 1
    changed = world.put(JOBS, b.job(workers=3))
    world.recorder.watched(changed)
    world.recorder.watched(changed)
    (record,) = world.records()
    assert isinstance(record, JobRecord) and record.job["spec"]["workers"] == 3
    world.recorder.written(stored)
    assert world.records() == [], "an older version, by a slow way"


@in_virtual_time
async def test_after_a_start_each_job_is_recorded_once_and_a_few_at_a_time() -> None:
    world = World()
    for number in range(1_000):
        world.put(JOBS, b.job(f"job-{number}", uid=f"uid-{number}"))
    world.cluster.put(JOBS, b.job("unknown", uid="another"))
    async with world.started():
        await asyncio.sleep(2.0)
        assert 50 <= len(world.outbox) <= 200
        await asyncio.sleep(15.0)
        assert len(world.outbox) == 1_000 == len({record.key.uid for record in world.records()})
        await asyncio.sleep(100.0)
        assert world.records() == []


@in_virtual_time
async def test_jobs_that_cannot_be_read_after_a_start_are_read_later() -> None:
    world = World()
    world.put(JOBS, b.job())
    world.cluster.fail("list", JOBS.plural, Unavailable("list", "no"), times=2)
    async with world.started():
        await asyncio.sleep(100.0)
        assert len(world.records()) == 1


@in_virtual_time
async def test_after_records_were_lost_each_job_is_recorded_again() -> None:
    world = World(limit=30_000)
    world.put(JOBS, b.job())
    async with world.started():
        await asyncio.sleep(5.0)
        assert len(world.records()) == 1
        world.outbox.put(WaitingRecord("job", "another", b"x" * 20_000))
        world.outbox.put(WaitingRecord("other", "another", b"x" * 20_000))
        assert world.outbox.lost
        await asyncio.sleep(100.0)
        assert len(world.outbox) == 2 and not world.outbox.lost


@in_virtual_time
async def test_while_much_waits_no_jobs_are_read_and_then_those_that_are_left() -> None:
    world = World()
    for number in range(10):
        world.put(JOBS, b.job(f"job-{number}", uid=f"uid-{number}", env="x" * 10_000))
    before, module.MUCH_WAITS = module.MUCH_WAITS, 25_000
    try:
        async with world.started():
            seen = []
            for _ in range(6):
                await asyncio.sleep(20.0)
                assert 0 < len(world.outbox) <= 4 or len(seen) == 10
                seen += [record.key.name for record in world.records()]
            assert sorted(seen) == [f"job-{number}" for number in range(10)]
    finally:
        module.MUCH_WAITS = before


@in_virtual_time
async def test_ranks_are_sampled_every_few_seconds_where_they_have_reported_since() -> None:
    world = World(seconds=2.0)
    world.write_status(phase="Running", attempt=1)
    world.records()
    async with world.started():
        world.report(1, at=1.0, r2={"step": 3, "loss": 0.5}, r3={"step": 3})
        world.report(0, at=1.5, r1={"step": 4}, r0={"step": 4, "step_seconds": 0.1})
        await asyncio.sleep(2.5)
        (record,) = world.samples()
        assert record == SampleRecord(
            1.5,
            IDENTITY,
            1,
            (0, 1, 2, 3),
            (0, 0, 1, 1),
            {"step": [4, 4, 3, 3], "loss": [None, None, 0.5, None], "step_seconds": [0.1, None, None, None]},
        )
        await asyncio.sleep(10.0)
        assert world.samples() == [], "nobody has reported"
        for number in range(100):
            world.report(0, at=2.0 + number / 10, r0={"step": 5 + number})
            await asyncio.sleep(0.1)
        assert 4 <= len(world.samples()) <= 6


@in_virtual_time
async def test_a_workers_system_is_recorded_also_where_no_rank_reports() -> None:
    world = World(seconds=2.0)
    world.write_status(phase="Running", attempt=2)
    world.records()
    async with world.started():
        for worker in (1, 0):
            world.store.record_system(KEY, SystemLine(2, worker, SystemSample(cpu_cores=1.0 + worker)), 4.0 + worker)
        world.store.record_system(KEY, SystemLine(1, 5, SystemSample(cpu_cores=9.0)), 6.0)  # of an earlier attempt
        await asyncio.sleep(2.5)
        (record,) = world.records()
        assert record == SystemRecord(4.0, IDENTITY, 2, (0, 1), (), {"cpuCores": [1.0, 2.0]})
        await asyncio.sleep(10.0)
        assert world.records() == [], "nobody has sampled"
        many = {worker: SystemSample(cpu_cores=1.0) for worker in range(100)}
        for worker, one in many.items():
            world.store.record_system(KEY, SystemLine(3, worker, one), 9.0)
        await asyncio.sleep(2.5)
        (record,) = world.records()
        assert isinstance(record, SystemRecord) and (record.attempt, len(record.workers)) == (3, 100)


async def test_a_job_of_many_ranks_is_sampled_less_often_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKS_A_SECOND", 10_000.0)
    world = World(seconds=0.05)
    world.write_status(phase="Running", attempt=1)
    many = {f"r{rank}": {"step": 1} for rank in range(2_000)}
    async with world.started():
        began, sampled, elapsed = time.monotonic(), 0, 0.0
        # The machine may be slow, so this waits until there are samples.
        while elapsed < 1.0 or sampled < 2:
            world.report(0, at=time.monotonic(), **many)
            await asyncio.sleep(0.02)
            sampled += len(world.samples())
            elapsed = time.monotonic() - began
        # At most five are recorded a second, the first at once.
        assert sampled <= 2 + 5 * elapsed


@in_virtual_time
async def test_what_an_attempts_ranks_reported_last_is_recorded_before_the_next_begins() -> None:
    world = World()
    world.write_status(phase="Running", attempt=1)
    world.report(0, r0={"step": 41})
    world.write_status(phase="Running", attempt=1, replicas=2)
    world.write_status(phase="Restarting", attempt=2)
    world.report(0, attempt=2, r0={"step": 40})
    first, sample, second = world.records()
    assert isinstance(sample, SampleRecord) and (sample.attempt, sample.columns["step"]) == (1, [41])
    assert isinstance(second, JobRecord) and second.job["status"]["attempt"] == 2 and isinstance(first, JobRecord)


@in_virtual_time
async def test_a_deleted_job_is_recorded_as_deleted_once_and_its_successor_is_another() -> None:
    world = World()
    world.write_status(phase="Running", attempt=1)
    world.report(0, r0={"step": 41})
    async with world.started():
        world.store.remove(JOBS, KEY, "bert", b.JOB_UID)
        world.cluster.remove(JOBS, b.NAMESPACE, "bert")
        await asyncio.sleep(10.0)
        assert [type(record) for record in world.records()] == [JobRecord, DeletedRecord]
        world.recorder.written(world.put(JOBS, b.job(uid="successor")))
        await asyncio.sleep(10.0)
        (record,) = world.records()
        assert record.key.uid == "successor"
        world.recorder.written(world.put(JOBS, b.job(uid="third")))
        await asyncio.sleep(10.0)
        kinds = [(type(record), record.key.uid) for record in world.records()]
        assert kinds == [(JobRecord, "third"), (DeletedRecord, "successor")]


@in_virtual_time
async def test_a_job_that_goes_before_its_turn_came_after_a_start_is_recorded_as_deleted_and_not_sampled_before() -> (
    None
):
    world = World()
    world.put(JOBS, b.job())
    world.report(0, r0={"step": 41})
    async with world.started():
        await asyncio.sleep(0.5)
        assert world.records() == [], "a history may not know the job"
        world.store.remove(JOBS, KEY, "bert", b.JOB_UID)
        world.cluster.remove(JOBS, b.NAMESPACE, "bert")
        await asyncio.sleep(10.0)
        assert world.records() == [DeletedRecord(5.0, IDENTITY)]


@in_virtual_time
async def test_evidence_and_logs_are_recorded_when_they_were_kept() -> None:
    world = World()
    world.put(JOBS, b.job())
    job = world.snapshot().job
    log = KeptLog(("a", "b\x0cc"), (1_000, 2_000), cut=True)
    world.recorder.kept_evidence(job, 2, '{"attempt": 2}')
    world.recorder.kept_logs(job, {3: log, 4: KeptLog()})
    assert world.records() == [
        EvidenceRecord(5.0, IDENTITY, 2, '{"attempt": 2}'),
        LogRecord(5.0, IDENTITY, 3, log),
        LogRecord(5.0, IDENTITY, 4, KeptLog()),
    ]


async def test_a_mistake_is_logged_once_a_minute_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    world = World(seconds=0.01)
    world.write_status(phase="Running", attempt=1)
    other = b.job("other", uid="other")
    world.recorder.written(world.put(JOBS, other))
    world.records()
    real = module.sample_line

    def sample_line(at: float, key: JobIdentity, attempt: int, reports: Any) -> bytes:
        if key == IDENTITY:
            raise ArithmeticError("unforeseen")
        return real(at, key, attempt, reports)

    monkeypatch.setattr(module, "sample_line", sample_line)
    async with world.started():
        for number in range(10):
            world.report(0, at=float(number), r0={"step": number})
            line = ProgressLine(attempt=1, worker=0, ranks={0: RankProgress(step=number)})
            world.store.record_progress(JobKey(b.NAMESPACE, "other"), line, float(number), 4)
            await until(lambda: any(isinstance(one, SampleRecord) for one in world.records()))
        for broken in (None, [], {"metadata": 1}, {"metadata": {"uid": [], "name": {}}}, {"status": float("nan")}):
            world.recorder.written(broken)  # type: ignore[arg-type]
            world.recorder.watched(broken)  # type: ignore[arg-type]
        world.recorder.kept_logs(None, {1: KeptLog()})  # type: ignore[arg-type]
    lines = [record for record in caplog.records if record.name == module.__name__]
    assert len(lines) == 1 and "ArithmeticError" in caplog.text
