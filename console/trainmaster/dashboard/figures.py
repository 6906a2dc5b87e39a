"""What the ranks of a job say now is asked of their agents once for all who look at it, and may ask the agents too.

Agents are reached by the API server's proxy to pods (`get pods/proxy`), which many viewers may not use; they see what
the history has of the ranks' last seconds, where there is one, and else why nothing is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import ClientError
from trainmaster.client.job import TrainingJob
from trainmaster.client.metrics import JobMetrics, job_metrics
from trainmaster.client.permission import Access, refusal
from trainmaster.dashboard.seen import Seen
from trainmaster.dashboard.streams import Refused, encoded
from trainmaster.dashboard.viewers import Viewer

# Between two questions to a job's agents; of a job with many workers more.
SECONDS = 2.0
WORKERS_A_SECOND = 64
# Jobs, and bytes of their events, that are kept; ranks of a job.
MOST_JOBS, MOST_BYTES, MOST_RANKS = 64, 8 * 2**20, 8_192
# Characters of why a worker says nothing.
MAX_WHY = 300
EVENT = "ranks"
# How old what a history has may be (seconds).
RECENT_SECONDS = 60.0

Pods = Sequence[Mapping[str, Any]]


@dataclass
class _Job:
    """_Job is the last answer of a job's agents, as the event that all pages of the job send."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float = 0.0
    event: bytes = b""


class Figures:
    """Figures has the last answers, for a moment."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._jobs: OrderedDict[str, _Job] = OrderedDict()

    async def of(self, viewer: Viewer, job: TrainingJob, pods: Pods) -> bytes:
        """Returns the event of what a viewer may see of the ranks now. Raises ClientError."""
        access = Access("get", "pods", "", namespace=job.namespace, subresource="proxy")
        if not await viewer.access.allows(access):
            return await self.recorded(viewer, job, f"Live figures of ranks are left out: {refusal(access)}")
        known = self._jobs.setdefault(job.uid, _Job())
        self._jobs.move_to_end(job.uid)
        while len(self._jobs) > MOST_JOBS or sum(len(one.event) for one in self._jobs.values()) > MOST_BYTES:
            if self._jobs.popitem(last=False)[1] is known:
                break
        async with known.asking:
            if not known.event or time.monotonic() - known.at >= seconds_between(len(pods)) * 0.9:
                metrics = await job_metrics(viewer.transport, job.namespace, list(pods), most=MOST_RANKS)
                known.at = time.monotonic()
                self._seen.add(job, metrics.ranks)
                known.event = encoded(EVENT, _answer(job, metrics))
            return known.event

    async def recorded(self, viewer: Viewer, job: TrainingJob, why: str) -> bytes:
        """Returns the event of what the history has of the ranks' last seconds; without one, why nothing is shown."""
        return encoded(EVENT, await _recorded(viewer, job, why))


def _answer(job: TrainingJob, found: JobMetrics) -> dict[str, Any]:
    ranks = [
        {
            "rank": rank.rank,
            "worker": rank.worker,
            "step": rank.step,
            "loss": rank.loss,
            "samplesPerSecond": rank.samples_per_second,
            "stepSeconds": rank.own_seconds,
            "gradNorm": rank.gradient_norm,
            "learningRate": rank.learning_rate,
        }
        for rank in found.ranks
    ]
    silent = {str(worker): why[:MAX_WHY] for worker, why in found.silent.items()}
    return {"at": time.time(), "attempt": job.status.attempt, "ranks": ranks, "silent": silent, "why": None}


async def _recorded(viewer: Viewer, job: TrainingJob, why: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"at": time.time(), "attempt": job.status.attempt, "ranks": [], "silent": {}}
    history = viewer.history
    if history is None:
        return {**answer, "why": why}
    since = time.time() - RECENT_SECONDS
    try:
        heat = await viewer.party.heavy(lambda: history.heat(job.namespace, job.name, uid=job.uid, since=since))
    except (ClientError, Refused) as error:
        return {**answer, "why": f"{why} The history: {error}"}
    values, times = heat.get("values") or [], heat.get("at") or []
    if not values:
        return {**answer, "why": why}
    unknown = dict.fromkeys(("step", "loss", "samplesPerSecond", "gradNorm", "learningRate"))
    ranks = [
        {"rank": rank, "worker": worker, **unknown, "stepSeconds": value}
        for rank, worker, value in zip(heat["ranks"], heat["workers"], values[-1], strict=False)
    ]
    return {**answer, "at": times[-1], "ranks": ranks, "why": None}


def seconds_between(workers: int) -> float:
    """Returns after how long the agents of so many workers are asked again."""
    return max(SECONDS, workers / WORKERS_A_SECOND)
