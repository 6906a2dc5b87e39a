"""Each running job has an open stream to its leader, which sends reports, progress and workers as they happen.

The leader is the agent of the first worker in the assignment or, if that agent can't be reached, the agent of the next
worker. A broken stream is reopened at once, then after 10, 20, 40 ms and so on up to a second. After a connection that
lasted LASTING_SECONDS, the waits begin at the shortest again. Nothing is lost, because an agent keeps the last report
of each worker and sends it again.

A line is recorded only if it is about the job whose token opened the stream, about the job's workers and ranks, and
about an attempt that the operator has opened. So the job's size limits the recorded data. A leader that sends more than
a job of its size needs is read slowly (`targets.StreamBudget`). If a leader's own fault ends the stream, the operator
reconnects after longer and longer waits, up to a minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.apiserver.errors import (
    ClusterError,
    Conflict,
    NotFound,
    Silent,
    Unauthorized,
    Unusable,
)
from trainmaster_operator.controller.apiserver.pod_http import PodStream
from trainmaster_operator.controller.background import FailureLog, backoff, end_tasks, wait_until_set
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders.targets import AgentAddress, Reach, StreamBudget, StreamTarget
from trainmaster_operator.reconciling.observed.snapshot import StreamView
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.stream import (
    EvidenceLine,
    Hello,
    LineBuffer,
    OutputLine,
    ProgressLine,
    ReportLine,
    StallLine,
    StreamLine,
    SystemLine,
    WorkerLine,
    parse_line,
)
from trainmaster_operator.wire.values import ProtocolError

logger = logging.getLogger(__name__)
FIRST_RETRY, LONGEST_RETRY = 0.01, 1.0
# After 60 tries without an answer (about a minute), tries are 15 s apart. When a pod changes, a try follows at once.
PATIENT_TRIES, PATIENT_RETRY = 60, 15.0
# Number of tries at one agent before the next agent is tried. The waits between them (0.01 + 0.02 + ... s) add up to a
# third of a second, which is longer than an agent needs to start.
TRIES = 5
# Seconds between two checks whether an earlier agent can be reached again. Agents check too
# (agent/network/follower.py).
PREFERENCE_SECONDS = 1.0
# Timeout in seconds for a push or an acknowledgement. The annotation replaces a failed push, and the next
# acknowledgement replaces a failed one.
REQUEST_SECONDS = 2.0
# Seconds that a pass waits for the leader's answer to a pushed assignment.
ANSWER_SECONDS = 0.1
# Limit on the agents that an assignment is pushed to at the same time while no agent leads.
MOST_PUSHES = 64
# Timeout in seconds for the first line, which an agent sends at once.
HELLO_SECONDS = 5.0
# Seconds after which a connection counts as lasting: long enough for two pings and the leader's first messages.
LASTING_SECONDS = 10.0
# Seconds until the next connection after a leader's own fault: the first wait, which doubles up to the longest.
FIRST_FAULT, LONGEST_FAULT = 0.5, 60.0
# Lines that are recorded before the event loop runs other tasks, because all streams may send at the same time.
LINES_A_TURN = 16
# The faults that end a stream: the leader breaks the protocol, its answer has an unrequested form, or we have a bug.
Fault = Literal["protocol", "unusable", "bug"]
# Seconds between two acknowledgements. Each needs a connection, and the newest covers all earlier reports.
ACKNOWLEDGE_SECONDS = 0.25


@dataclass(eq=False)
class LeaderStreams:
    """Watches the leaders of all jobs, by one `LeaderStream` for each job that has a reachable agent."""

    reach: Reach
    store: Store
    keys: SigningKeys
    events: StreamEvents
    now: Callable[[], float] = time.time
    _streams: dict[JobKey, LeaderStream] = field(default_factory=dict, init=False)
    # Held while a stream records its lines, so that only one stream does so at a time. Never held during a wait.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def open(self) -> int:
        return sum(stream.connected_to is not None for stream in self._streams.values())

    def watch(self, key: JobKey, target: StreamTarget | None) -> None:
        """Watch the job's leader among the target's agents. If the target is None, the watch ends."""
        stream = self._streams.get(key)
        if stream is not None and target is not None and stream.target.uid == target.uid:
            stream.update(target)
            return
        if stream is not None:
            self._streams.pop(key).stop()
        if target is not None:
            self._streams[key] = LeaderStream(
                self.reach, self.store, self.keys, target, self.events, self.now, self._turn
            )

    async def push(self, key: JobKey, assignment: Assignment) -> None:
        """Push an assignment to the job's leader, if the job is watched, and wait a moment for the answer."""
        stream = self._streams.get(key)
        if stream is not None:
            await stream.push(assignment)

    async def collect(self, key: JobKey, request: str) -> str:
        """Ask a job's leader for all ranks' stacks; returns the problem, which is empty if there is none."""
        stream = self._streams.get(key)
        if stream is None or stream.connected_to is None:
            return "no worker's agent is connected"
        return await stream.collect(stream.connected_to, request)

    async def close(self) -> None:
        """End all streams and close their connections."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.stop()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
        await self.reach.close()


@dataclass(frozen=True)
class StreamEvents:
    """Receives the data of streams that isn't kept in the store."""

    # Called with a job's key when ranks have reported progress, and with whether it is the attempt's first progress.
    progressed: Callable[[JobKey, bool], None]
    # Called with a job's uid when one of its workers has sent evidence of a stall, or an answer to a stacks request.
    stalled: Callable[[str, EvidenceLine], None]
    answered: Callable[[str, EvidenceLine], None]
    # Called with a job's key and uid, and the last output of one of its workers that has ended.
    printed: Callable[[JobKey, str, OutputLine], None]
    # Called with a namespace whose agents don't know the operator's token.
    unauthorized: Callable[[str], None]
    # Called if a stream ended by a fault, not only by a broken connection.
    failed: Callable[[Fault], None]


@dataclass(eq=False)
class LeaderStream:
    """Watches one job's leader, and changes to another agent when that agent becomes the leader."""

    reach: Reach
    store: Store
    keys: SigningKeys
    target: StreamTarget
    events: StreamEvents
    now: Callable[[], float]
    turn: asyncio.Lock
    connected_to: AgentAddress | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        target = self.target
        self._token = self.keys.job_token(target.key.namespace, target.uid)
        self._view = StreamView()
        # Workers that the leader has listed. The store is changed once for all lines that arrived together.
        self._workers: dict[int, WorkerLine] = {}
        # By worker, when its agent left the leader. When the agent joins again, the entry is removed.
        self._left: dict[int, float] = {}
        self._changed = asyncio.Event()
        self._failures = 0
        self._faults = 0
        self._log = FailureLog(logger, str(target.key))
        # The time (the event loop's clock) at which the newest hello of a leader arrived.
        self._connected_at = 0.0
        self._prefer_first = False
        # Whether a report of this stream wasn't recorded, because its attempt or worker isn't known (yet).
        self._passed_over = False
        # Whether to reconnect to the same agent, so that it sends all reports again.
        self._again = False
        # The number of the newest report of this connection, and whether it isn't acknowledged yet.
        self._newest = 0
        self._unacknowledged = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._budget = StreamBudget(len(target.workers), target.world, self._clock)
        # Set when an attempt has begun, because the leader may then send more.
        self._granted = asyncio.Event()
        self._pushing: asyncio.Future[Any] | None = None
        self._answers_soon = True
        self.task = asyncio.create_task(self._run(), name=f"stream {target.key}")

    def update(self, target: StreamTarget) -> None:
        """Set a target with other candidates or a newer attempt."""
        before, self.target = self.target, target
        if (target.workers, target.world) != (before.workers, before.world):
            self._budget.resize(len(target.workers), target.world)
        if target.attempt > before.attempt:
            self._budget.grant_attempt()
            self._granted.set()
        if target.candidates != before.candidates:
            self._failures = 0
            self._changed.set()
        if self._passed_over and (target.attempt, target.workers) != (before.attempt, before.workers):
            self._again = True
            self._changed.set()

    def stop(self) -> None:
        self.task.cancel()
        if self._pushing is not None:
            self._pushing.cancel()
        self.store.record_stream(self.target.key, StreamView())

    async def push(self, assignment: Assignment) -> None:
        """Push an assignment in the background; it replaces an assignment that is still on its way.

        Returns when the leader has answered, or after ANSWER_SECONDS. If the leader hasn't answered the last push at
        all, returns at once, so that a slow pod delays no pass.
        """
        if self._pushing is not None:
            self._pushing.cancel()
        agents = [agent for agent in self.target.candidates if agent == self.connected_to]
        if not agents and not self._failures:
            # The leader was just lost, and no other agent leads yet, so push to all agents.
            agents = list(self.target.candidates[:MOST_PUSHES])
        if not agents:
            return
        self._pushing = asyncio.gather(*(self._push(agent, assignment) for agent in agents))
        if self._answers_soon:
            done, _ = await asyncio.wait({self._pushing}, timeout=ANSWER_SECONDS)
            self._answers_soon = bool(done)

    async def _push(self, agent: AgentAddress, assignment: Assignment) -> None:
        try:
            await self._request("POST", agent, "/v1/assignment", self.keys.sign(assignment).encode())
            self._answers_soon = True
        except Conflict:
            logger.info("%s: the leader knows a newer attempt than %d", self.target.key, assignment.attempt)
        except ClusterError as error:
            logger.info("%s: attempt %d wasn't pushed: %s", self.target.key, assignment.attempt, error)

    async def collect(self, agent: AgentAddress, request: str) -> str:
        """Ask the leader for all ranks' stacks; returns the problem, which is empty if there is none."""
        try:
            await self._request("POST", agent, "/v1/collect", json.dumps({"request": request}).encode())
        except NotFound:
            return "the job's agents are of an earlier version that can't be asked; new pods have the present one"
        except ClusterError as error:
            return f"the agent of {agent.pod} can't be asked: {error.message}"
        return ""

    async def _run(self) -> None:
        while True:
            try:
                await self._watch_once(self._choose())
            except Exception as error:
                # A bug of ours must not permanently end the watching of a job without notice.
                self._fault("bug", self._choose(), error)
            if self._changed.is_set():
                continue
            self._failures += 1
            await wait_until_set(self._changed, self._pause())

    async def _watch_once(self, agent: AgentAddress) -> None:
        """Use one connection until it ends or another agent should be watched."""
        self._changed.clear()
        self._newest = 0
        self._unacknowledged.clear()
        self._passed_over = self._again = self._prefer_first = False
        works = (self._listen(agent), self._stay_with(agent), self._acknowledge(agent))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            results = await end_tasks(tasks)
            self._disconnected()
        for result in results:
            if isinstance(result, Exception):
                self._fault("bug", agent, result)

    def _pause(self) -> float:
        """Returns the seconds from the end of a connection to the next one."""
        longest = LONGEST_RETRY if self._failures < PATIENT_TRIES else PATIENT_RETRY
        pause = backoff(self._failures - 1, FIRST_RETRY, longest)
        if self._faults:
            pause = max(pause, backoff(self._faults - 1, FIRST_FAULT, LONGEST_FAULT))
        return pause * (0.8 + 0.4 * random.random())

    def _fault(self, fault: Fault, agent: AgentAddress, error: Exception) -> None:
        """Count and log a stream that ended by a fault. The next try uses another agent."""
        self._faults += 1
        self._try_the_next()
        self.events.failed(fault)
        if fault == "bug":
            self._log.report(f"the stream of {agent.pod} failed", error)
        else:
            self._log.report(f"the stream of {agent.pod} can't be used: {error}")

    def _try_the_next(self) -> None:
        self._failures = (self._failures // TRIES + 1) * TRIES - 1

    def _choose(self) -> AgentAddress:
        candidates = self.target.candidates
        return candidates[0 if self._prefer_first else (self._failures // TRIES) % len(candidates)]

    async def _stay_with(self, agent: AgentAddress) -> None:
        """Returns when another agent should be watched, because this agent is gone or an earlier candidate is back."""
        while True:
            first = self.target.candidates[0] == agent
            await wait_until_set(self._changed, None if first else PREFERENCE_SECONDS)
            candidates = self.target.candidates
            if agent not in candidates or self._again:
                self._changed.set()
                return
            self._changed.clear()
            if candidates[0] != agent and self.connected_to is not None and await self._answers(candidates[0]):
                # The followers return to the first agent within a second.
                self._prefer_first = True
                self._changed.set()
                return

    async def _answers(self, agent: AgentAddress) -> bool:
        try:
            await self._request("GET", agent, "/healthz")
        except ClusterError:
            return False
        return True

    async def _listen(self, agent: AgentAddress) -> None:
        key = self.target.key
        try:
            async with self.reach.open("GET", agent, "/v1/stream", self._token) as stream:
                await self._read(agent, stream)
            logger.info("%s: the stream of %s ended", key, agent.pod)
        except (ProtocolError, Unusable) as error:
            self._fault("protocol" if isinstance(error, ProtocolError) else "unusable", agent, error)
        except ClusterError as error:
            if isinstance(error, Silent):
                # The agent accepted the connection but hangs. By now, its peers follow the next agent.
                self._try_the_next()
            elif isinstance(error, Unauthorized):
                self.events.unauthorized(key.namespace)
            logger.log(logging.INFO if self.connected_to else logging.DEBUG, "%s: stream: %s", key, error)

    async def _read(self, agent: AgentAddress, stream: PodStream) -> None:
        buffer = LineBuffer()
        opened, received = self._clock(), 0
        async for chunk in stream.chunks():
            self._budget.spend(stream.received - received, 0, 0)
            received = stream.received
            raws = buffer.feed(chunk)
            while some := list(islice(raws, LINES_A_TURN)):
                async with self.turn:
                    self._budget.spend(0, len(some), self._record_lines(agent, some))
                    await asyncio.sleep(0)
                await self._wait_for_budget()
            await self._wait_for_budget()
            if self.connected_to is None and self._clock() - opened > HELLO_SECONDS:
                raise Silent(f"GET {agent.pod}/v1/stream", f"no hello within {HELLO_SECONDS:g} s")

    async def _wait_for_budget(self) -> None:
        while (seconds := self._budget.seconds) > 0:
            self._granted.clear()
            await wait_until_set(self._granted, seconds)

    def _record_lines(self, agent: AgentAddress, raws: Sequence[bytes]) -> int:
        """Record some lines; returns how many of them changed the store. Raises ProtocolError."""
        changes, most_ranks = 0, max(self.target.processes.values(), default=0)
        for raw in raws:
            line = parse_line(raw, most_ranks)
            changes += self._record_line(agent, line)
            if isinstance(line, ReportLine) and line.seq > self._newest:
                self._newest = line.seq
                self._unacknowledged.set()
        if self.connected_to is not None:
            workers = tuple(self._workers.values())
            changes += self._record_view(replace(self._view, workers=workers, left=dict(self._left)))
        return changes

    def _record_line(self, agent: AgentAddress, line: StreamLine) -> bool:
        """Record a line if it is about this job; returns whether the store changed."""
        key, target = self.target.key, self.target
        job = self.store.version(key, JOBS, key.name)
        if job is None or job.uid != target.uid:
            # The job is gone. A new job of the same name may exist, and the old job's agents may not report on it.
            return False
        if (self.connected_to is None) != isinstance(line, Hello):
            raise ProtocolError("a stream begins with its one hello")
        match line:
            case Hello():
                self.connected_to, self._connected_at = agent, self._clock()
                self._workers = {worker.worker: worker for worker in line.workers if worker.worker in target.workers}
                self._left = {}
                # A leader that knows of a stall sends its line after the hello.
                self.store.record_stall(key, None)
                return self._record_view(StreamView(True, agent.worker, self.now(), tuple(self._workers.values())))
            case WorkerLine() if line.worker in target.workers:
                self._workers[line.worker] = line
                if line.connected:
                    self._left.pop(line.worker, None)
                else:
                    self._left.setdefault(line.worker, self.now())
            case ReportLine(report=report) if report.worker in target.workers and report.attempt <= target.attempt:
                return self.store.record_report(key, report)
            case ReportLine():
                self._passed_over = True
            case ProgressLine() | EvidenceLine() | SystemLine() | OutputLine() if (
                line.worker not in target.workers or line.attempt > target.attempt
            ):
                return False
            case ProgressLine() if target.has_ranks(line.attempt, line.worker, line.ranks):
                most_ranks = target.processes[line.worker]
                first = self.store.record_progress(key, line, self.now(), most_ranks)
                if first is not None:
                    self.events.progressed(key, first)
            case SystemLine():
                self.store.record_system(key, line, self.now())
            case StallLine(rank=rank) if line.attempt == target.attempt and (rank is None or rank < target.world):
                return self.store.record_stall(key, line)
            case OutputLine():
                self.events.printed(key, target.uid, line)
            case EvidenceLine() if target.has_ranks(line.attempt, line.worker, line.ranks):
                # Only the last two attempts' data is kept.
                if line.request:
                    self.events.answered(target.uid, line)
                elif line.attempt >= target.attempt - 1:
                    self.events.stalled(target.uid, line)
        return False

    def _record_view(self, view: StreamView) -> bool:
        self._view = view
        return self.store.record_stream(self.target.key, view)

    def _disconnected(self) -> None:
        if self.connected_to is not None and self._clock() - self._connected_at >= LASTING_SECONDS:
            self._failures = self._faults = 0
        self.connected_to = None
        if self._view.connected:
            self._budget.spend(0, 0, self._record_view(StreamView(since=self.now())))

    async def _request(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, body: bytes | None = None
    ) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS), self.reach.open(method, agent, path, self._token, body):
                return
        except TimeoutError as error:
            raise Silent(f"{method} {agent.pod}{path}", f"no answer within {REQUEST_SECONDS:g} s") from error

    async def _acknowledge(self, agent: AgentAddress) -> None:
        """Send the agent the number of the newest recorded report, one request at a time."""
        while await self._unacknowledged.wait():
            self._unacknowledged.clear()
            try:
                await self._request("POST", agent, "/v1/ack", json.dumps({"seq": self._newest}).encode())
            except ClusterError as error:
                # The next report or stream leads to another acknowledgement. If none arrives, the agent exits.
                logger.debug("%s: reports aren't acknowledged: %s", self.target.key, error)
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)
