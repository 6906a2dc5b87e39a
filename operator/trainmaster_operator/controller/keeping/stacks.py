"""Keeps the stacks of all ranks that somebody asked for: the newest request's, in the ConfigMap `<job>-stacks`.

The ConfigMap (api/evidence.py) is owned by the job. It is written once a request, when all workers have answered or
ANSWER_SECONDS are over, in the background: nothing ever waits for it. Bounded: HELD_BYTES in memory and TOTAL_BYTES in
the ConfigMap for a job, KEPT_RANKS ranks. Where the job or the operator doesn't let output be kept, it says how each
rank stood, and has no stacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from trainmaster_operator.api.evidence import Stacks, clean, stacks_name
from trainmaster_operator.api.times import to_text
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, Cluster, whole
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound
from trainmaster_operator.controller.cache.views import owner_uid
from trainmaster_operator.controller.keeping.logs import allows_logs
from trainmaster_operator.controller.keeping.owned_config_map import owned_config_map
from trainmaster_operator.controller.watching.watched import STACKS_CONTENT
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.evidence import RankState
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES
from trainmaster_operator.wire.stream import EvidenceLine

logger = logging.getLogger(__name__)

# An agent gives its ranks 3 s at most (agent/hang/evidence.py), and its answer goes by way of the leader.
ANSWER_SECONDS = 5.0
HELD_BYTES = 1024 * 1024
# A ConfigMap holds 1 MiB, with its names.
TOTAL_BYTES = 768 * 1024
KEPT_RANKS = 2_048
WRITES = 3


@dataclass
class _Collecting:
    """Holds what has been answered to a job's newest request."""

    request: str
    attempt: int
    unanswered: set[int]
    ranks: dict[int, RankState] = field(default_factory=dict)
    size: int = 0
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class StacksKeeper:
    """Collects the answers to requests for stacks, by the uid of the job; see the module."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        keep_output: bool = True,
        answer_seconds: float = ANSWER_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._keep_output = keep_output
        self._answer_seconds = answer_seconds
        self._now = now
        self._jobs: dict[str, _Collecting] = {}

    def collect(self, job: Job, action: CollectStacks, ask: Callable[[], Awaitable[str]]) -> None:
        """Ask, and write what comes. `ask` passes the request on; it returns why it can't, empty where it could."""
        self.forget(job.uid)
        collecting = _Collecting(action.request, action.attempt, set(action.workers))
        self._jobs[job.uid] = collecting
        collecting.task = asyncio.create_task(
            self._collect(job, collecting, ask), name=f"stacks {job.namespace}/{job.name}"
        )

    def record(self, uid: str, line: EvidenceLine) -> None:
        """Record a worker's answer, from the stream; one to an earlier request is of no use any more."""
        collecting = self._jobs.get(uid)
        if collecting is None or (line.request, line.attempt) != (collecting.request, collecting.attempt):
            return
        for rank, state in line.ranks.items():
            before = collecting.ranks.get(rank)
            collecting.size += len(state.text) - (0 if before is None else len(before.text))
            if collecting.size > HELD_BYTES:
                collecting.size -= len(state.text)
                state = state._replace(text="")
            collecting.ranks[rank] = state
        if not line.more:
            collecting.unanswered.discard(line.worker)
        if not collecting.unanswered:
            collecting.complete.set()

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        collecting = self._jobs.pop(uid, None)
        if collecting is not None and collecting.task is not None:
            collecting.task.cancel()

    async def close(self) -> None:
        """End; who waits for an answer that wasn't written asks again."""
        tasks = [one.task for one in self._jobs.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self, job: Job, collecting: _Collecting, ask: Callable[[], Awaitable[str]]) -> None:
        problem = await ask()
        if not problem:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._answer_seconds):
                    await collecting.complete.wait()
        withheld = not (self._keep_output and allows_logs(job))
        stacks = Stacks(
            request=collecting.request,
            attempt=collecting.attempt,
            collected_at=to_text(self._now()),
            ranks={rank: _kept(state, withheld=withheld) for rank, state in sorted(collecting.ranks.items())},
            unanswered=tuple(sorted(collecting.unanswered)),
            problem=problem,
            withheld=withheld,
        )
        try:
            await self._write(job, fitted(stacks).to_data())
        except ClusterError as error:
            logger.warning("%s/%s: the stacks can't be kept: %s", job.namespace, job.name, error)
        if self._jobs.get(job.uid) is collecting:
            del self._jobs[job.uid]

    async def _write(self, job: Job, data: dict[str, str]) -> None:
        """Put the data in the place of what there is. Raises ClusterError."""
        name = stacks_name(job.name)
        for _ in range(WRITES):
            try:
                found = await self._cluster.get(whole(CONFIG_MAPS), job.namespace, name)
            except NotFound:
                try:
                    await self._cluster.create(
                        CONFIG_MAPS, job.namespace, owned_config_map(job, name, STACKS_CONTENT, data)
                    )
                    return
                except AlreadyExists:
                    continue
            metadata = found["metadata"]
            if owner_uid(metadata) != job.uid:
                logger.info("%s/%s: %s belongs to somebody else", job.namespace, job.name, name)
                return
            changes = {**dict.fromkeys(found.get("data") or {}), **data}
            version = metadata.get("resourceVersion")
            body = {"metadata": {"uid": metadata["uid"], "resourceVersion": version}, "data": changes}
            try:
                await self._cluster.patch(CONFIG_MAPS, job.namespace, name, body)
                return
            except Conflict:
                continue


def fitted(stacks: Stacks, limit: int = TOTAL_BYTES, most_ranks: int = KEPT_RANKS) -> Stacks:
    """Returns the stacks within a size: the last ranks are left out, then all texts are shortened to an equal share."""
    kept = {rank: stacks.ranks[rank] for rank in sorted(stacks.ranks)[:most_ranks]}
    stacks = replace(stacks, ranks=kept, left_out=len(stacks.ranks) - len(kept))
    share = limit
    while sum(len(key) + len(text.encode()) for key, text in stacks.to_data().items()) > limit and share > 0:
        share = min(share // 2, limit // max(len(kept), 1))
        ranks = {rank: {**state, "text": _beginning(str(state["text"]), share)} for rank, state in kept.items()}
        stacks = replace(stacks, ranks=ranks)
    return stacks


def _beginning(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _kept(state: RankState, *, withheld: bool) -> dict[str, object]:
    """Returns a rank's state for a person, who asked for no limits."""
    text = "" if withheld else clean(state.text, MAX_EVIDENCE_BYTES)
    shown = state._replace(state=clean(state.state, 1), text=text, limit_seconds=0.0, limit="", patient=False)
    return shown.to_wire()
