"""One open stream for each running job, from its lead: reports, progress and members as they happen.

`LeadStreams` holds a task for each job that has somebody to listen to. The lead is the agent of the first worker in the
assignment; when it can't be reached, of the next one. A broken stream is opened again at once, then after 10, 20, 40 ms
and so on up to a second. Nothing is lost by that: an agent keeps the last report of each worker and tells it again.

What is said is only ever noted for the job whose token opened the stream, for workers of that job, and for attempts
that the operator has made. Lines that come faster than a job of its size can mean are read slowly.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from trainmaster.api.protocol import Assignment, ProtocolError, job_token
from trainmaster.api.v1alpha1 import TERMINAL_PHASES, JobStatus
from trainmaster.controller.cluster import JOBS, PodStream
from trainmaster.controller.errors import ClusterError, Conflict, Silent
from trainmaster.controller.reach import AgentAddress, Reach
from trainmaster.controller.records import JobKey, Snapshot
from trainmaster.controller.store import Store
from trainmaster.controller.stream_lines import (
    EvidenceLine,
    Hello,
    Line,
    LineBuffer,
    ProgressLine,
    ReportLine,
    parse_line,
)
from trainmaster.reconciling.snapshot import MemberView, StreamView
from trainmaster.rendering import worker_count, worker_layout

logger = logging.getLogger(__name__)

FIRST_RETRY, LONGEST_RETRY = 0.01, 1.0
# An agent that hasn't answered for a minute won't soon: it is asked every 15 s then, and at once when a pod changes.
PATIENT_TRIES, PATIENT_RETRY = 60, 15.0
# Tries at one agent before the next one is asked: 0.01 + 0.02 + ... is a third of a second, longer than an agent needs
# to start.
TRIES = 5
# Seconds between two looks whether an earlier agent in the succession is back; agents do the same (agent/link.py).
PREFERENCE_SECONDS = 1.0
# Seconds for a push or an acknowledgement; the annotation and the next report are the fallback.
POST_SECONDS = 2.0
# Lines a second for each worker: progress comes once a second, reports and members now and then.
LINES_A_WORKER = 5.0


@dataclass(frozen=True)
class Following:
    """Whom to listen to for a job. `workers` are those that it can have, whether or not their pods are there now.

    `candidates` are reachable agents in the order of lead succession.
    """

    key: JobKey
    uid: str
    attempt: int
    workers: frozenset[int]
    candidates: tuple[AgentAddress, ...]


def plan(snapshot: Snapshot, status: JobStatus) -> Following | None:
    """Whom to listen to, by the newest assignment that stands anywhere; None when there is nobody."""
    job, observed = snapshot.job, snapshot.observed
    if job.deleting or status.phase in TERMINAL_PHASES or status.phase == "Suspended":
        return None
    assignments = [child.assignment for child in observed.children] + [pod.assignment for pod in observed.pods]
    newest = max((a for a in assignments if a is not None), key=lambda a: a.attempt, default=None)
    if newest is None:
        return None
    pods = {pod.worker: pod for pod in observed.pods}
    candidates = []
    for worker in newest.workers:
        pod = pods.get(worker)
        if pod is None or pod.deleting or pod.worker_container is None or pod.worker_container.state != "running":
            continue
        candidates.append(AgentAddress(job.namespace, pod.name, pod.uid, worker, pod.ip))
    if not candidates:
        return None
    key = JobKey(job.namespace, job.name)
    # A worker whose pod is being replaced too: it may have joined and finished before the next plan.
    everybody = worker_count(worker_layout(job.identity, job.spec)) if job.spec is not None else 0
    workers = frozenset([*range(everybody), *newest.workers, *pods])
    return Following(key, job.uid, max(status.attempt, newest.attempt), workers, tuple(candidates))


class LeadStreams:
    """The streams of all jobs.

    `progressed` is called with a job's key when ranks have told progress, and whether it is the attempt's first.
    """

    def __init__(
        self,
        reach: Reach,
        store: Store,
        *,
        progressed: Callable[[JobKey, bool], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._reach = reach
        self._store = store
        self._progressed = progressed
        self._now = now
        # Called with a job's uid and a worker's evidence of a stall.
        self.heard: Callable[[str, EvidenceLine], None] = lambda _uid, _line: None
        self._followers: dict[JobKey, _Follower] = {}

    @property
    def open(self) -> int:
        """Streams that are connected now."""
        return sum(follower.connected_to is not None for follower in self._followers.values())

    def follow(self, key: JobKey, following: Following | None) -> None:
        """Listen to a job, to other agents of it than before, or (None) no more."""
        follower = self._followers.get(key)
        if follower is not None and (following is None or follower.following.uid != following.uid):
            follower.stop()
            del self._followers[key]
            follower = None
        if following is None:
            return
        if follower is None:
            self._followers[key] = _Follower(
                self._reach,
                self._store,
                following,
                self._progressed,
                lambda uid, line: self.heard(uid, line),
                self._now,
            )
        else:
            follower.update(following)

    def expect(self, key: JobKey, attempt: int) -> None:
        """An attempt is about to be opened: reports of it may come before the pass that opens it has ended."""
        follower = self._followers.get(key)
        if follower is not None and attempt > follower.following.attempt:
            follower.update(replace(follower.following, attempt=attempt))

    async def push(self, key: JobKey, assignment: Assignment) -> bool:
        """Send an assignment to the lead; False when no stream is open or the lead didn't take it."""
        follower = self._followers.get(key)
        return False if follower is None else await follower.push(assignment)

    async def close(self) -> None:
        """End all streams."""
        followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            follower.stop()
        await asyncio.gather(*(follower.task for follower in followers), return_exceptions=True)


class _Follower:
    """One job's stream."""

    def __init__(
        self,
        reach: Reach,
        store: Store,
        following: Following,
        progressed: Callable[[JobKey, bool], None],
        evidence: Callable[[str, EvidenceLine], None],
        now: Callable[[], float],
    ) -> None:
        self._reach = reach
        self._store = store
        self.following = following
        self._progressed = progressed
        self._evidence = evidence
        self._now = now
        self._token = job_token(following.uid)
        self.connected_to: AgentAddress | None = None
        self._view = StreamView()
        self._changed = asyncio.Event()
        self._failures = 0
        # A report of this stream wasn't taken in: of an attempt, or a worker, that this operator doesn't know (yet).
        self._passed_over = False
        # All reports shall be told again, by the same agent.
        self._again = False
        self.task = asyncio.create_task(self._run(), name=f"stream {following.key}")

    def update(self, following: Following) -> None:
        """Other candidates, or a newer attempt."""
        before, self.following = self.following, following
        if following.candidates != before.candidates:
            self._failures = 0
            self._changed.set()
        if self._passed_over and (following.attempt, following.workers) != (before.attempt, before.workers):
            self._again = True
            self._changed.set()

    def stop(self) -> None:
        self.task.cancel()
        self._store.note_stream(self.following.key, StreamView())

    async def push(self, assignment: Assignment) -> bool:
        agent = self.connected_to
        if agent is None:
            return False
        try:
            await self._post(agent, "/v1/assignment", assignment.to_json().encode())
        except Conflict:
            logger.info("%s: the lead knows a newer attempt than %d", self.following.key, assignment.attempt)
            return False
        except (ClusterError, TimeoutError) as error:
            logger.info("%s: attempt %d wasn't pushed: %s", self.following.key, assignment.attempt, error)
            return False
        return True

    async def _run(self) -> None:
        while True:
            agent = self._choose()
            self._changed.clear()
            self._passed_over = self._again = False
            reader = asyncio.create_task(self._listen(agent))
            waiter = asyncio.create_task(self._stay_with(agent))
            try:
                await asyncio.wait({reader, waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reader, waiter):
                    task.cancel()
                await asyncio.gather(reader, waiter, return_exceptions=True)
                self._disconnected()
            if self._changed.is_set():
                continue
            self._failures += 1
            longest = LONGEST_RETRY if self._failures < PATIENT_TRIES else PATIENT_RETRY
            backoff = min(FIRST_RETRY * 2.0 ** min(self._failures - 1, 20), longest)
            pause = backoff * (0.8 + 0.4 * random.random())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    def _choose(self) -> AgentAddress:
        candidates = self.following.candidates
        return candidates[(self._failures // TRIES) % len(candidates)]

    async def _stay_with(self, agent: AgentAddress) -> None:
        """Returns when another agent should be listened to: this one is gone, or an earlier one is back."""
        while True:
            first = self.following.candidates[0] == agent
            with suppress(TimeoutError):
                async with asyncio.timeout(None if first else PREFERENCE_SECONDS):
                    await self._changed.wait()
            candidates = self.following.candidates
            if agent not in candidates or self._again:
                self._changed.set()
                return
            self._changed.clear()
            if candidates[0] != agent and self.connected_to is not None and await self._answers(candidates[0]):
                # The members have gone back to it, as they do within a second.
                self._failures = 0
                self._changed.set()
                return

    async def _answers(self, agent: AgentAddress) -> bool:
        try:
            async with asyncio.timeout(POST_SECONDS), self._reach.open("GET", agent, "/healthz", self._token):
                return True
        except (ClusterError, TimeoutError):
            return False

    async def _listen(self, agent: AgentAddress) -> None:
        key = self.following.key
        try:
            async with self._reach.open("GET", agent, "/v1/stream", self._token) as stream:
                await self._read(agent, stream)
            logger.info("%s: the stream of %s ended", key, agent.pod)
        except ProtocolError as error:
            # Not a way of failing that waiting soon helps: another agent may speak better.
            self._failures = max(self._failures, TRIES)
            logger.warning("%s: %s says what doesn't fit the protocol: %s", key, agent.pod, error)
        except ClusterError as error:
            if isinstance(error, Silent):
                # It took the connection and stands still: its peers have left it by now, for the next one.
                self._failures = (self._failures // TRIES + 1) * TRIES - 1
            logger.log(logging.INFO if self.connected_to else logging.DEBUG, "%s: stream: %s", key, error)

    async def _read(self, agent: AgentAddress, stream: PodStream) -> None:
        buffer = LineBuffer()
        loop = asyncio.get_running_loop()
        acknowledging = _Acknowledging(lambda seq: self._post(agent, "/v1/ack", json.dumps({"seq": seq}).encode()))
        budget, at = self._burst(), loop.time()
        try:
            async for chunk in stream.chunks():
                lines = 0
                for raw in buffer.feed(chunk):
                    lines += 1
                    line = parse_line(raw)
                    self._take(agent, line)
                    if isinstance(line, ReportLine):
                        acknowledging.up_to(line.seq)
                now = loop.time()
                budget = min(self._burst(), budget + (now - at) * self._rate()) - lines
                at = now
                if budget < 0:
                    await asyncio.sleep(-budget / self._rate())
        finally:
            acknowledging.stop()

    def _rate(self) -> float:
        return 20.0 + LINES_A_WORKER * len(self.following.workers)

    def _burst(self) -> float:
        return 10.0 * self._rate()

    def _take(self, agent: AgentAddress, line: Line) -> None:
        key, following = self.following.key, self.following
        job = self._store.version(key, JOBS, key.name)
        if job is None or job.uid != following.uid:
            # The job is gone, and another of its name may be there already: its agents have nothing to tell of that.
            return
        match line:
            case Hello():
                self.connected_to = agent
                self._failures = 0
                members = tuple(member for member in line.members if member.worker in following.workers)
                self._note(StreamView(True, agent.worker, self._now(), members))
            case MemberView() if line.worker in following.workers:
                others = tuple(member for member in self._view.members if member.worker != line.worker)
                self._note(replace(self._view, members=(*others, line)))
            case ReportLine(report=report) if (
                report.worker in following.workers and report.attempt <= following.attempt
            ):
                self._store.note_report(key, report)
            case ReportLine():
                self._passed_over = True
            case ProgressLine() if line.worker in following.workers and line.attempt <= following.attempt:
                first = self._store.note_progress(key, line.attempt, line.worker, line.ranks, self._now())
                if first is not None:
                    self._progressed(key, first)
            case EvidenceLine() if line.worker in following.workers and line.attempt <= following.attempt:
                self._evidence(following.uid, line)
            case _:
                return

    def _note(self, view: StreamView) -> None:
        self._view = view
        self._store.note_stream(self.following.key, view)

    def _disconnected(self) -> None:
        self.connected_to = None
        if self._view.connected:
            self._note(StreamView(since=self._now()))

    async def _post(self, agent: AgentAddress, path: str, body: bytes) -> None:
        async with asyncio.timeout(POST_SECONDS), self._reach.open("POST", agent, path, self._token, body):
            return


class _Acknowledging:
    """Tells the lead what has been taken in: the newest number only, one request at a time, in the background."""

    def __init__(self, post: Callable[[int], Awaitable[None]]) -> None:
        self._post = post
        self._newest = self._told = 0
        self._task: asyncio.Task[None] | None = None

    def up_to(self, seq: int) -> None:
        self._newest = max(self._newest, seq)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        while self._told < self._newest:
            seq = self._newest
            try:
                await self._post(seq)
            except (ClusterError, TimeoutError) as error:
                # The next report or the next stream acknowledges again; the agent's own fallback is its exit.
                logger.debug("Reports up to %d not acknowledged: %s", seq, error)
                return
            self._told = seq
