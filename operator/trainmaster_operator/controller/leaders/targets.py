"""Computes from a job's snapshot which agents to watch, and limits the content and the amount of their reports.

A target limits the data that is kept from a leader to the workers of the spec and of existing pods, and to their ranks.
An agent is reached at its pod's address inside the cluster, and through the API server's pod proxy outside. Both were
measured to be equally fast.

A leader has a budget of bytes, lines and changes, which depends on the job's size. A leader that sends more is read
slowly, so unread data stays in its pod. A line counts as a change if it changes the store and so requests a pass over
the job. A pass costs a hundred times as much as reading the line. A healthy job causes a few changes for each worker
and attempt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from trainmaster_operator.api.v1alpha1 import SUSPENDED_PHASES, TERMINAL_PHASES, JobStatus
from trainmaster_operator.controller.apiserver.cluster import Cluster
from trainmaster_operator.controller.apiserver.errors import Unreachable
from trainmaster_operator.controller.apiserver.pod_http import PodHttp, PodStream
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.rendering import worker_layout
from trainmaster_operator.wire.names import TOKEN_HEADER

# Timeout in seconds for a TCP connection to an agent in the same network.
CONNECT_SECONDS = 1.0
# Lines a second, for each job and for each worker. Each worker sends progress once a second, and other lines rarely.
LINES, LINES_A_WORKER = 20.0, 5.0
# Bytes a second, for each job, worker and rank. A worker's progress contains a few hundred bytes for each rank.
BYTES, BYTES_A_WORKER, BYTES_A_RANK = 65_536.0, 4_096.0, 1_024.0
# A burst may contain the lines and bytes of this many seconds, because a stream begins with everything that the leader
# knows.
LINES_BURST, BYTES_BURST = 10.0, 3.0
# Changes allowed for an attempt. Each worker joins, sees the attempt, starts, runs and ends; after that, its end may be
# sent again.
CHANGES, CHANGES_A_WORKER = 10.0, 6.0
# Further changes allowed per second.
CHANGES_A_SECOND = 1.0


@dataclass(frozen=True)
class StreamTarget:
    """Names the agents of a job that may lead, and limits their reports.

    `candidates` are reachable agents, in the order in which they lead. `processes` contains the number of ranks of each
    worker that the job can have, even if the worker has no pod now. `assigned` is the newest attempt whose workers are
    known, and `ranks` lists each worker's ranks in that attempt.
    """

    key: JobKey
    uid: str
    attempt: int
    candidates: tuple[AgentAddress, ...]
    processes: Mapping[int, int]
    assigned: int = 0
    ranks: Mapping[int, range] = field(default_factory=dict)

    @property
    def workers(self) -> Collection[int]:
        return self.processes.keys()

    @property
    def world(self) -> int:
        return sum(self.processes.values())

    def has_ranks(self, attempt: int, worker: int, ranks: Collection[int]) -> bool:
        """Returns whether a worker can have these ranks. If the attempt's workers are known, the check is exact."""
        if attempt == self.assigned:
            own = self.ranks.get(worker, range(0))
            return all(rank in own for rank in ranks)
        return len(ranks) <= self.processes.get(worker, 0) and all(rank < self.world for rank in ranks)


def stream_target(snapshot: Snapshot, status: JobStatus) -> StreamTarget | None:
    """Returns the agents to watch, from the newest assignment of any child or pod; None if there are no agents."""
    job, observed = snapshot.job, snapshot.observed
    if job.deleting or job.unreadable is not None or status.phase in TERMINAL_PHASES | SUSPENDED_PHASES:
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
    # The layout includes a worker whose pod is being replaced, because that worker may join and finish before the next
    # target is computed.
    layout = worker_layout(job.identity, job.spec) if job.spec is not None else ()
    processes = {worker: group.processes for group in layout for worker in group.indexes}
    # Workers that were scaled away may still run. They have as many ranks as the others, because only jobs of one group
    # are resized.
    most = max(processes.values(), default=0)
    processes = {worker: processes.get(worker, most) for worker in (*processes, *pods)}
    # Ranks are numbered in the order of the assignment. A worker's number of ranks can't change once the job exists.
    counts = [processes.get(worker, 0) for worker in newest.workers]
    places = zip(newest.workers, counts, accumulate(counts), strict=True)
    return StreamTarget(
        key=key,
        uid=job.uid,
        attempt=max(status.attempt, newest.attempt),
        candidates=tuple(candidates),
        processes=processes,
        assigned=newest.attempt,
        ranks={worker: range(end - count, end) for worker, count, end in places},
    )


@dataclass(frozen=True)
class AgentAddress:
    namespace: str
    pod: str
    uid: str
    worker: int
    ip: str | None


class Reach:
    """Opens requests to agents, at their pods' addresses or through the API server (`proxy`)."""

    def __init__(self, port: int, *, proxy: Cluster | None = None) -> None:
        self._port = port
        self._proxy = proxy
        self._http = PodHttp()

    @asynccontextmanager
    async def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AsyncIterator[PodStream]:
        """Yields an agent's answer. Raises ClusterError."""
        headers = {TOKEN_HEADER: token}
        if self._proxy is not None:
            opening = self._proxy.pod_proxy(
                method, agent.namespace, agent.pod, self._port, path, headers=headers, body=body
            )
        else:
            request = f"{method} {agent.pod}:{self._port}{path}"
            if agent.ip is None:
                raise Unreachable(request, "the pod has no address yet")
            host = f"[{agent.ip}]" if ":" in agent.ip else agent.ip
            url = f"http://{host}:{self._port}{path}"
            opening = self._http.open(method, url, request, headers=headers, body=body, connect_seconds=CONNECT_SECONDS)
        async with opening as stream:
            yield stream

    async def close(self) -> None:
        await self._http.close()


@dataclass
class _Allowance:
    """Allows `rate` units a second. Unused units are saved up to `most`; `left` can be negative for a while."""

    rate: float = 1.0
    most: float = 0.0
    left: float = 0.0

    def resize(self, rate: float, most: float) -> None:
        self.left += max(0.0, most - self.most)
        self.rate, self.most = rate, most


class StreamBudget:
    """Limits the data of one job's leader, over all its connections. `clock` is the event loop's."""

    def __init__(self, workers: int, ranks: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refilled_at = clock()
        self._all = self._bytes, self._lines, self._changes = _Allowance(), _Allowance(), _Allowance()
        self._an_attempt = 0.0
        self.resize(workers, ranks)

    def resize(self, workers: int, ranks: int) -> None:
        """Set the limits for a job of another size."""
        lines = LINES + LINES_A_WORKER * workers
        self._lines.resize(lines, LINES_BURST * lines)
        size = BYTES + BYTES_A_WORKER * workers + BYTES_A_RANK * ranks
        self._bytes.resize(size, BYTES_BURST * size)
        self._an_attempt = CHANGES + CHANGES_A_WORKER * workers
        # Reports on the previous attempt may still arrive, so allow two attempts' changes.
        self._changes.resize(CHANGES_A_SECOND, 2 * self._an_attempt)

    def grant_attempt(self) -> None:
        """Allow the changes of an attempt that the operator opens."""
        self._changes.left = min(self._changes.most, self._changes.left + self._an_attempt)

    def spend(self, size: int, lines: int, changes: int) -> None:
        self._refill()
        self._bytes.left -= size
        self._lines.left -= lines
        self._changes.left -= changes

    @property
    def seconds(self) -> float:
        """Returns the seconds during which nothing more should be read; `grant_attempt` shortens that time."""
        self._refill()
        return max(0.0, *(-allowance.left / allowance.rate for allowance in self._all))

    def _refill(self) -> None:
        now = self._clock()
        for allowance in self._all:
            allowance.left = min(allowance.most, allowance.left + (now - self._refilled_at) * allowance.rate)
        self._refilled_at = now
