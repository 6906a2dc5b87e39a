"""`leaders`: a leader that misbehaves harms only its own job's stream, and each attack has a bound."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.processes.controller.hostile_server import Answer, HostileServer, answering, hostile
from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.leaders.recorded_events import RecordedEvents
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.cache.records import REPORTED_ATTEMPTS, JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders import streams
from trainmaster_operator.controller.leaders.streams import LeaderStreams
from trainmaster_operator.controller.leaders.targets import (
    AgentAddress,
    Reach,
    StreamBudget,
    StreamTarget,
    stream_target,
)
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import LineBuffer, StreamLine, parse_line

KEY = JobKey(b.NAMESPACE, "bert")
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO: dict[str, Any] = {"type": "hello", "leader": 0, "uid": "pod-bert-0", "attempt": 1, "workers": []}
END = b"0\r\n\r\n"


def encoded(*lines: dict[str, Any] | bytes) -> bytes:
    """Returns lines as one chunk."""
    text = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return b"%x\r\n%s\r\n" % (len(text), text)


def report(state: str, attempt: int = 1, worker: int = 0, at: float = 1.0) -> dict[str, Any]:
    report = {"attempt": attempt, "worker": worker, "uid": "pod-bert-0", "state": state, "at": at}
    return {"type": "report", "seq": 1, "report": report}


def progress(attempt: int, worker: int, *ranks: int) -> dict[str, Any]:
    return {
        "type": "progress",
        "attempt": attempt,
        "worker": worker,
        "ranks": {str(rank): {"step": 1} for rank in ranks},
    }


def evidence(attempt: int, worker: int, *ranks: int) -> dict[str, Any]:
    return {**progress(attempt, worker, *ranks), "type": "evidence"}


class World:
    """Holds a job of two workers with two ranks each, whose first worker's agent is hostile."""

    def __init__(self, pod: HostileServer) -> None:
        self.changes: list[JobKey] = []
        self.events = RecordedEvents()
        self.store = Store(self.changes.append, KEYS)
        self.store.upsert(JOBS, {**b.job(), "metadata": {**b.job()["metadata"], "resourceVersion": "1"}})
        self.reach = Reach(pod.port)
        self.streams = LeaderStreams(self.reach, self.store, KEYS, self.events)
        self.address = AgentAddress(b.NAMESPACE, "bert-0", "pod-bert-0", 0, pod.address)

    def watch(self, attempt: int = 1) -> None:
        ranks = {0: range(2), 1: range(2, 4)}
        self.streams.watch(
            KEY, StreamTarget(KEY, b.JOB_UID, attempt, (self.address,), {0: 2, 1: 2}, assigned=1, ranks=ranks)
        )

    def snapshot(self) -> Snapshot:
        found = self.store.snapshot(KEY)
        assert found is not None
        return found


@asynccontextmanager
async def watched(answer: Answer) -> AsyncIterator[tuple[World, HostileServer]]:
    async with hostile(answer) as pod:
        world = World(pod)
        world.watch()
        try:
            yield world, pod
        finally:
            await world.streams.close()
            await world.reach.close()


def then(*pieces: bytes) -> Answer:
    """Answers with a stream that sends hello and this, and stays open; all other requests are answered well."""

    async def answer(server: HostileServer, writer: asyncio.StreamWriter) -> None:
        if "/v1/stream" in server.heads[-1]:
            await answering(HEAD, encoded(HELLO), *pieces)(server, writer)
        else:
            await answering(b"HTTP/1.1 204 No Content\r\n\r\n")(server, writer)

    return answer


def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the pauses before the streams would be reopened; here they don't wait."""
    waited: list[float] = []
    pause = streams.LeaderStream._pause

    def shortened(watching: Any) -> float:
        waited.append(pause(watching))
        return 0.001

    monkeypatch.setattr(streams.LeaderStream, "_pause", shortened)
    return waited


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"\n" * 100_000, "protocol"),
        (b'{"type":' + b"[" * 50_000 + b"\n", "protocol"),
        (b'{"type":"ping","at":' + b"9" * 50_000 + b"}\n", "protocol"),
        (json.dumps(HELLO).encode() + b"\n", "protocol"),
        (b"x" * 100_000, "protocol"),
    ],
    ids=["blank lines", "nested deeply", "a number of 50,000 digits", "a second hello", "no line's end"],
)
async def test_what_no_agent_sends_ends_the_stream_and_the_next_one_waits_ever_longer(
    line: bytes, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = pauses(monkeypatch)
    async with watched(then(encoded(line))) as (world, _):
        await until(lambda: len(waited) >= 9)
    assert set(world.events.faults) == {fault}
    assert waited[0] < 1.0, "one mistake isn't an attack"
    assert all(after > before for before, after in pairwise(waited[:7]))
    assert waited[8] >= 0.8 * streams.LONGEST_FAULT


async def test_hello_and_close_changes_the_store_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello used to reset the back-off: 619 changes in four seconds, each a pass over the job."""
    waited = pauses(monkeypatch)
    # It would limit the changes by itself.
    monkeypatch.setattr(StreamBudget, "seconds", 0.0)
    async with watched(then(END)) as (world, _):
        await until(lambda: len(waited) >= 70)
        assert len(world.changes) <= 2 * len(waited) + 3
    assert waited[6] > 16 * waited[0]
    assert min(waited[10:50]) >= 0.8 * streams.LONGEST_RETRY
    assert waited[-1] >= 0.8 * streams.PATIENT_RETRY


async def test_a_mistake_of_ours_is_logged_and_counted_and_the_stream_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception used to vanish in `gather`, and nobody could see why a job's reports were missing."""
    waited = pauses(monkeypatch)
    async with watched(then(encoded(report("Running")))) as (world, _):
        record_report = world.store.record_report
        mistakes = [KeyError("a"), RecursionError("b"), OverflowError("c")]

        def mistaken(key: JobKey, report: Report) -> bool:
            if mistakes:
                raise mistakes.pop(0)
            return record_report(key, report)

        monkeypatch.setattr(world.store, "record_report", mistaken)
        with caplog.at_level(logging.ERROR):
            await until(lambda: bool(world.snapshot().observed.reports))
        assert world.events.faults == ["bug"] * 3
        logged = [record for record in caplog.records if "the stream of bert-0 failed" in record.message]
        assert len(logged) == 1, "one line a minute for a job"
        assert logged[0].exc_info is not None
        assert len(waited) == 3


async def test_a_stay_that_fails_is_a_mistake_of_ours_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = pauses(monkeypatch)

    async def mistaken(*_: Any) -> None:
        raise TypeError("stay")

    monkeypatch.setattr(streams.LeaderStream, "_stay_with", mistaken)
    async with watched(then()) as (world, _):
        await until(lambda: len(waited) >= 3)
    assert set(world.events.faults) == {"bug"}


async def test_only_ranks_of_the_worker_are_kept() -> None:
    """Rank numbers up to 10^8 once filled 512 MiB in eleven seconds."""
    attack = [progress(1, 0, rank) for rank in range(2, 200)]
    foreign = [progress(1, 1, 0), progress(1, 7, 0), progress(1, 0, 0, 99_999_999)]
    lines = [*attack, *foreign, progress(1, 0, 0), progress(1, 1, 2, 3), report("Running")]
    async with watched(then(encoded(*lines))) as (world, _):
        await until(lambda: bool(world.snapshot().observed.reports))
        observed = world.snapshot().observed
    assert {worker: sorted(ranks) for worker, ranks in observed.progress.items()} == {0: [0], 1: [2, 3]}


async def test_of_an_attempt_whose_workers_are_not_known_yet_as_many_ranks_are_kept_as_a_worker_has() -> None:
    lines = [
        progress(2, 0, 0, 1, 2),
        progress(2, 0, *range(1_500)),
        progress(2, 0, 4),
        progress(2, 0, 0, 1),
        progress(2, 0, 2, 3),
        report("Running"),
    ]
    async with hostile(then(encoded(*lines))) as pod:
        world = World(pod)
        world.watch(attempt=2)
        await until(lambda: bool(world.snapshot().observed.reports))
        observed = world.snapshot().observed
        await world.streams.close()
        await world.reach.close()
    assert {worker: sorted(ranks) for worker, ranks in observed.progress.items()} == {0: [2, 3]}


async def test_evidence_is_only_taken_of_ranks_of_the_worker_and_of_attempts_that_matter() -> None:
    lines = [evidence(1, 0, 2), evidence(1, 0, 5), evidence(1, 9, 0), evidence(9, 0, 0), evidence(1, 0, 0, 1)]
    async with watched(then(encoded(*lines, report("Running")))) as (world, _):
        await until(lambda: bool(world.snapshot().observed.reports))
        assert [sorted(line.ranks) for line in world.events.evidence] == [[0, 1]]
        world.watch(attempt=9)
        await until(lambda: world.streams._streams[KEY].target.attempt == 9)
    async with hostile(then(encoded(*(evidence(attempt, 0, 0) for attempt in range(1, 9)), report("Running")))) as pod:
        world = World(pod)
        world.watch(attempt=9)
        await until(lambda: bool(world.snapshot().observed.reports))
        assert [line.attempt for line in world.events.evidence] == [8]
        await world.streams.close()
        await world.reach.close()


async def test_a_stall_is_only_taken_of_a_rank_of_the_job_and_of_its_attempt() -> None:
    stall = {"type": "stall", "attempt": 1, "since": 7.0, "rank": 3, "message": "rank 3"}
    foreign = [{**stall, "rank": 4, "message": "x"}, {**stall, "attempt": 2, "message": "x"}]
    async with watched(then(encoded(stall, *foreign, report("Running")))) as (world, _):
        await until(lambda: bool(world.snapshot().observed.reports))
        found = world.snapshot().observed.stall
    assert found is not None and found.message == "rank 3"


async def test_changes_have_a_budget_and_every_attempt_brings_an_allowance() -> None:
    """Each change requests a pass over the job."""
    flips = [report("Starting" if number % 2 else "Running", at=float(number)) for number in range(2_000)]
    async with watched(then(*(encoded(flip) for flip in flips))) as (world, _):
        watching = world.streams._streams[KEY]
        await until(lambda: watching._budget.seconds > 0)
        most = 2 * (10 + 6 * 2)
        # The lines of one turn may exceed it.
        spent = len(world.changes)
        assert spent <= most + streams.LINES_A_TURN + 3
        world.watch(attempt=2)
        await until(lambda: len(world.changes) > spent + 5)


async def test_workers_that_were_sent_together_are_one_change() -> None:
    flips = [{"type": "worker", "worker": 0, "uid": "u", "seen": 1, "connected": n % 2 == 0} for n in range(101)]
    async with watched(then(encoded(*flips, report("Running")))) as (world, _):
        await until(lambda: bool(world.snapshot().observed.reports))
        await until(lambda: bool(world.snapshot().observed.stream.workers))
        # The job, the hello, the report; and the workers once for the lines of a turn.
        assert len(world.changes) <= 4 + len(flips) // streams.LINES_A_TURN + 2


async def test_the_loop_turns_while_much_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading buffered data never yields by itself: a gigabyte of lines once blocked the operator for two minutes."""
    ping = b'{"type":"ping"}\n'
    since_turn, most, parsed = 0, 0, 0

    def counted(line: bytes, most_ranks: int) -> StreamLine:
        nonlocal since_turn, most, parsed
        since_turn, parsed = since_turn + 1, parsed + 1
        most = max(most, since_turn)
        return parse_line(line, most_ranks)

    monkeypatch.setattr(streams, "parse_line", counted)
    monkeypatch.setattr(StreamBudget, "seconds", 0.0)
    async with watched(then(encoded(ping * 50_000))):
        while parsed < 50_000:
            since_turn = 0
            await asyncio.sleep(0)
    assert most <= streams.LINES_A_TURN


async def test_a_leader_that_does_not_answer_a_push_holds_up_nothing() -> None:
    """It delays neither the pass that pushes nor the next assignment; eight such jobs once blocked all workers."""

    async def answer(server: HostileServer, writer: asyncio.StreamWriter) -> None:
        if "/v1/stream" in server.heads[-1]:
            await answering(HEAD, encoded(HELLO))(server, writer)
        else:
            await asyncio.sleep(3600)

    async with watched(answer) as (world, pod):
        await until(lambda: world.streams.open == 1)
        before = len(asyncio.all_tasks())
        for attempt in range(2, 12):
            await world.streams.push(KEY, b.assignment(attempt))
            await until(lambda: sum("/v1/assignment" in head for head in pod.heads) == attempt - 1)  # noqa: B023
        pushing = [task for task in asyncio.all_tasks() if task.get_name().startswith("push")]
        assert len(pushing) <= 2 and len(asyncio.all_tasks()) < before + 20


async def test_acknowledgements_are_no_way_to_have_the_operator_open_connections() -> None:
    flips = [{**report("Running", at=float(number)), "seq": number} for number in range(1, 60)]
    async with watched(then(*(encoded(flip) for flip in flips))) as (world, pod):
        await until(lambda: "/v1/ack" in "".join(pod.heads))
        await until(lambda: bool(world.snapshot().observed.reports) and world.snapshot().observed.reports[0].at == 59.0)
        assert sum("/v1/ack" in head for head in pod.heads) <= 3


def test_a_line_that_comes_byte_by_byte_is_searched_once() -> None:
    buffer = LineBuffer()
    for _ in range(1_000):
        assert list(buffer.feed(b"x")) == []
    assert buffer._searched == 1_000
    assert list(buffer.feed(b"\ny\n")) == [b"x" * 1_000, b"y"]


def test_a_budget_is_made_up_for_by_waiting() -> None:
    now = [0.0]
    budget = StreamBudget(workers=4, ranks=8, clock=lambda: now[0])
    budget.spend(0, 400, 0)
    assert budget.seconds == 0, "ten seconds of lines may come at once"
    budget.spend(0, 80, 0)
    assert budget.seconds == pytest.approx(2.0)
    now[0] = 2.5
    assert budget.seconds == 0
    budget.spend(10_000_000, 0, 0)
    assert budget.seconds > 60
    bigger = StreamBudget(workers=1_000, ranks=8_000, clock=lambda: now[0])
    bigger.spend(10_000_000, 40_000, 12_000)
    assert bigger.seconds == 0, "by the job's size"


def test_an_attempt_is_an_allowance_of_changes() -> None:
    now = [0.0]
    budget = StreamBudget(workers=1, ranks=1, clock=lambda: now[0])
    budget.spend(0, 0, 2 * 16 + 10)
    assert budget.seconds == pytest.approx(10.0)
    budget.grant_attempt()
    assert budget.seconds == 0
    budget.resize(100, 100)
    budget.spend(0, 0, 1_000)
    assert budget.seconds == 0


def test_reports_are_kept_of_few_attempts_whatever_attempts_they_name() -> None:
    """Reports in the stream and in termination messages can name any attempt and any worker."""
    store = Store(lambda _: None, KEYS)
    store.upsert(JOBS, {**b.job(), "metadata": {**b.job()["metadata"], "resourceVersion": "1"}})
    store.upsert(STATEFUL_SETS, b.child("StatefulSet"))
    for attempt in range(1, 500):
        store.record_report(KEY, Report(attempt, attempt % 2, "u", "Running"))
    for number in range(2, 300):
        said_by_it = json.dumps({"attempt": 2**40 + number, "worker": number, "state": "Failed", "exitCode": 1})
        end = {"exitCode": 1, "finishedAt": "2026-11-22T10:00:00Z", "message": said_by_it}
        status = {"name": "worker", "state": {"running": {}}, "lastState": {"terminated": end}}
        pod = b.pod(1, containerStatuses=[status])
        store.upsert(PODS, {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(number)}})
    found = store.snapshot(KEY)
    assert found is not None
    assert len(found.observed.reports) <= REPORTED_ATTEMPTS * 2
    assert {report.worker for report in found.observed.reports} <= {0, 1}
    assert max(report.attempt for report in found.observed.reports) == 2**40 + 299


def test_an_edited_annotation_does_not_make_a_job_larger() -> None:
    """Anyone who can edit a pod can write any assignment on it."""
    huge = Assignment(
        job=b.JOB_UID,
        attempt=1,
        workers=tuple(range(1_000)),
        uids=None,
        hosts=("h",) * 1_000,
        port=20_001,
        processes=(1_000,) * 1_000,
    )
    store = Store(lambda _: None, KEYS)
    store.upsert(JOBS, {**b.job(), "metadata": {**b.job()["metadata"], "resourceVersion": "1"}})
    store.upsert(STATEFUL_SETS, b.child("StatefulSet"))
    pod = b.pod(0, assigned=huge)
    store.upsert(PODS, {**pod, "metadata": {**pod["metadata"], "resourceVersion": "1"}})
    found = store.snapshot(KEY)
    assert found is not None
    target = stream_target(found, found.job.status)
    assert target is not None
    assert (set(target.workers), target.world) == ({0, 1}, 2)
    assert not target.has_ranks(1, 0, [1])
