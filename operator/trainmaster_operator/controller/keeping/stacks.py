"""Keeps the answers to the newest request for all ranks' stacks, in the ConfigMap `<job>-stacks`.

The ConfigMap (api/evidence.py) is written once for a request, in the background, when all workers have answered or
after ANSWER_SECONDS. A job's stacks take at most HELD_BYTES in memory; in the ConfigMap, at most TOTAL_BYTES from
KEPT_RANKS ranks are stored. If the job or the operator doesn't allow output to be kept, the ConfigMap contains each
rank's state without its stacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from trainmaster_operator.api.evidence import Stacks, stacks_name
from trainmaster_operator.api.times import to_text
from trainmaster_operator.controller.apiserver.errors import ClusterError
from trainmaster_operator.controller.background import end_tasks, wait_until_set
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps, kept_state
from trainmaster_operator.controller.watching.resync import STACKS_CONTENT
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine

logger = logging.getLogger(__name__)

# An agent waits at most 3 s for its ranks (agent/hang/evidence.py), and its answer passes through the leader.
ANSWER_SECONDS = 5.0
HELD_BYTES = 1024 * 1024
# A ConfigMap holds 1 MiB, including its names.
TOTAL_BYTES = 768 * 1024
KEPT_RANKS = 2_048


@dataclass
class _Collecting:
    """Holds the answers to a job's newest request."""

    action: CollectStacks
    unanswered: set[int]
    ranks: dict[int, RankState] = field(default_factory=dict)
    size: int = 0
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class StacksKeeper:
    """Collects the answers to requests for stacks.

    `ask` sends a request to a job's leader and returns the problem, which is empty if there is none.
    """

    config_maps: JobConfigMaps
    ask: Callable[[JobKey, str], Awaitable[str]]
    answer_seconds: float = ANSWER_SECONDS
    # By the job's uid.
    _jobs: dict[str, _Collecting] = field(default_factory=dict, init=False)

    def collect(self, key: JobKey, job: Job, action: CollectStacks) -> None:
        """Send a request, and write the answers in the background."""
        self.forget(job.uid)
        collecting = self._jobs[job.uid] = _Collecting(action, set(action.workers))
        collecting.task = asyncio.create_task(self._collect(key, job, collecting), name=f"stacks {key}")

    def record(self, uid: str, line: EvidenceLine) -> None:
        """Record a worker's answer, from the stream; an answer to an earlier request is dropped."""
        collecting = self._jobs.get(uid)
        if collecting is None or (line.request, line.attempt) != (collecting.action.request, collecting.action.attempt):
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
        collecting = self._jobs.pop(uid, None)
        if collecting is not None and collecting.task is not None:
            collecting.task.cancel()

    async def close(self) -> None:
        """End without writing: users who wait for an answer repeat their request."""
        await end_tasks(collecting.task for collecting in self._jobs.values())

    async def _collect(self, key: JobKey, job: Job, collecting: _Collecting) -> None:
        action = collecting.action
        problem = await self.ask(key, action.request)
        if not problem:
            await wait_until_set(collecting.complete, self.answer_seconds)
        withheld = not self.config_maps.allow_output(job)
        stacks = Stacks(
            request=action.request,
            attempt=action.attempt,
            collected_at=to_text(time.time()),
            ranks={rank: kept_state(state, withheld=withheld) for rank, state in sorted(collecting.ranks.items())},
            unanswered=tuple(sorted(collecting.unanswered)),
            problem=problem,
            withheld=withheld,
        )
        data = fitted(stacks).to_data()
        try:
            await self.config_maps.write(
                job, stacks_name(job.name), STACKS_CONTENT, lambda before: {**dict.fromkeys(before), **data}
            )
        except ClusterError as error:
            logger.warning("%s: the stacks can't be kept: %s", key, error)
        if self._jobs.get(job.uid) is collecting:
            del self._jobs[job.uid]


def fitted(stacks: Stacks, limit: int = TOTAL_BYTES, most_ranks: int = KEPT_RANKS) -> Stacks:
    """Leaves out ranks after the first `most_ranks`, then shortens all texts equally to fit into `limit` bytes."""
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
