"""Polls a job's agents for the ranks' figures, and keeps them if there is no history. All viewers share the polls.

Agents are polled through the API server's proxy to pods (`get pods/proxy`). Viewers without that right see the ranks'
last seconds from the history. If there is no history, they see why the figures are missing.

If a viewed job has too many samples, every second one is dropped, and later samples are taken half as often. So a few
hundred samples cover the whole time. The answers have the same format as the history's.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import ClientError
from trainmaster.client.job import TrainingJob
from trainmaster.client.metrics import JobMetrics, RankMetrics, job_metrics
from trainmaster.client.permission import Access, refusal
from trainmaster.dashboard.streams import Refused, encoded
from trainmaster.dashboard.viewers import Viewer
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES

# Seconds between two polls of a job's agents. Jobs with many workers are polled less often.
SECONDS = 2.0
WORKERS_A_SECOND = 64
# Limits of the cache: number of jobs, bytes of their events, ranks of a job.
ASKED_JOBS, MOST_BYTES, ASKED_RANKS = 64, 8 * 2**20, 8_192
# Maximum characters of the reason why a worker doesn't answer.
MAX_WHY = 300
EVENT = "ranks"
# Maximum age of the history's record on the page (seconds).
RECENT_SECONDS = 60.0

Pods = Sequence[Mapping[str, Any]]
MOST_JOBS = 16
MOST_SAMPLES = 480
# Maximum number of ranks whose figures are kept for a job. A history keeps all.
MOST_RANKS = 256
# A job's figures over time.
SERIES = (
    *("step", "loss", "learningRate", "gradNorm", "samplesPerSecond"),
    *("stepSeconds", "slowestStepSeconds", "goodput", "redone"),
)
# Figures of ranks: the name in a heat map, and the attribute with the value.
RANK_FIGURES = {"stepSeconds": "own_seconds", "gradNorm": "gradient_norm", "loss": "loss"}


@dataclass
class _Job:
    """_Job is the last answer of a job's agents, encoded as the event that all its pages get."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float = 0.0
    event: bytes = b""


class Figures:
    """Figures caches the last answers of the agents of each job."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._jobs: OrderedDict[str, _Job] = OrderedDict()

    async def of(self, viewer: Viewer, job: TrainingJob, pods: Pods) -> bytes:
        """Returns the event with the ranks' current figures. Raises ClientError."""
        access = Access("get", "pods", "", namespace=job.namespace, subresource="proxy")
        if not await viewer.access.allows(access):
            return await self.recorded(viewer, job, f"Live figures of ranks are left out: {refusal(access)}")
        known = self._jobs.setdefault(job.uid, _Job())
        self._jobs.move_to_end(job.uid)
        while len(self._jobs) > ASKED_JOBS or sum(len(one.event) for one in self._jobs.values()) > MOST_BYTES:
            if self._jobs.popitem(last=False)[1] is known:
                break
        async with known.asking:
            if not known.event or time.monotonic() - known.at >= seconds_between(len(pods)) * 0.9:
                metrics = await job_metrics(viewer.transport, job.namespace, list(pods), most=ASKED_RANKS)
                known.at = time.monotonic()
                self._seen.add(job, metrics.ranks)
                known.event = encoded(EVENT, _answer(job, metrics))
            return known.event

    async def recorded(self, viewer: Viewer, job: TrainingJob, why: str) -> bytes:
        """Returns the event with the ranks' last figures from the history, or with the reason why they are missing."""
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
    """Returns the seconds between two polls of the agents of a job with `workers` workers."""
    return max(SECONDS, workers / WORKERS_A_SECOND)


@dataclass(frozen=True)
class Sample:
    """Sample contains the figures of a job and its ranks at one time. A rank's unknown figure is NaN."""

    at: float
    attempt: int
    job: dict[str, Any]
    time_spent: dict[str, float]
    workers: dict[int, int]
    figures: dict[str, array[float]]


@dataclass
class SeenJob:
    """SeenJob holds one job's samples, oldest first, and the minimum seconds between two samples."""

    resolution: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Adds a sample, unless the last one is too recent."""
        if self.samples and sample.at - self.samples[-1].at < self.resolution:
            return
        self.samples.append(sample)
        if len(self.samples) >= MOST_SAMPLES:
            self.samples = self.samples[::2]
            whole = self.samples[-1].at - self.samples[0].at
            self.resolution = whole / max(1, len(self.samples) - 1) * 0.9


class Seen:
    """Seen holds the samples of the recently viewed jobs."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, SeenJob] = OrderedDict()

    def add(self, job: TrainingJob, ranks: Sequence[RankMetrics]) -> None:
        """Adds a sample of a running job and its ranks."""
        seen = self._jobs.setdefault(job.uid, SeenJob())
        self._jobs.move_to_end(job.uid)
        seen.add(_sample(job, ranks))
        while len(self._jobs) > MOST_JOBS:
            self._jobs.popitem(last=False)

    def series(self, uid: str, since: float | None, until: float | None, points: int) -> dict[str, Any]:
        """Returns the job's curves as a Series."""
        samples, resolution = self._between(uid, since, until, points)
        spent = [name for name in TIME_CATEGORIES if any(name in sample.time_spent for sample in samples)]
        return {
            "kind": "Series",
            "resolutionSeconds": resolution,
            "at": [sample.at for sample in samples],
            "attempt": [sample.attempt for sample in samples],
            **{name: [sample.job[name] for sample in samples] for name in SERIES},
            "timeSpent": {name: [sample.time_spent.get(name) for sample in samples] for name in spent},
        }

    def heat(self, uid: str, since: float | None, until: float | None, columns: int, figure: str) -> dict[str, Any]:
        """Returns one figure of all ranks as a RankHeat."""
        samples, resolution = self._between(uid, since, until, columns)
        workers = {rank: worker for sample in samples for rank, worker in sample.workers.items()}
        # A faulty pod may report different ranks in each sample, so their number is limited.
        ranks = sorted(workers)[:MOST_RANKS]
        return {
            "kind": "RankHeat",
            "figure": figure,
            "resolutionSeconds": resolution,
            "at": [sample.at for sample in samples],
            "attempt": [sample.attempt for sample in samples],
            "ranks": ranks,
            "workers": [workers[rank] for rank in ranks],
            "values": [_values(sample, figure, ranks) for sample in samples],
            "leftOut": max((sample.job["leftOut"] for sample in samples), default=0) + len(workers) - len(ranks),
        }

    def _between(self, uid: str, since: float | None, until: float | None, most: int) -> tuple[list[Sample], float]:
        seen = self._jobs.get(uid, SeenJob())
        first, last = since or 0.0, math.inf if until is None else until
        samples = [sample for sample in seen.samples if first <= sample.at <= last]
        every = max(1, math.ceil(len(samples) / most))
        # The newest sample is always included.
        return samples[::-1][::every][::-1], max(seen.resolution, 2.0) * every


def _sample(job: TrainingJob, ranks: Sequence[RankMetrics]) -> Sample:
    progress, spent = job.status.progress, job.status.time_spent
    # Any pod may claim any rank. If two pods claim the same rank, the first one's values are used.
    by_rank = {rank.rank: rank for rank in reversed(ranks)}
    kept = [by_rank[rank] for rank in sorted(by_rank)][:MOST_RANKS]
    steps = sorted(rank.own_seconds for rank in ranks if rank.own_seconds is not None)
    first = kept[0] if kept else None
    step = None if progress is None else progress.step
    furthest = None if progress is None else progress.furthest_step
    newest = max((rank.step for rank in ranks if rank.step is not None), default=step)
    return Sample(
        at=round(time.time(), 3),
        attempt=job.status.attempt,
        job={
            "step": newest,
            "loss": _first(getattr(first, "loss", None), getattr(progress, "loss", None)),
            "learningRate": getattr(first, "learning_rate", None),
            "gradNorm": getattr(first, "gradient_norm", None),
            "samplesPerSecond": getattr(progress, "samples_per_second", None),
            "stepSeconds": statistics.median(steps) if steps else None,
            "slowestStepSeconds": steps[-1] if steps else None,
            "goodput": getattr(progress, "goodput", None),
            "redone": newest is not None and furthest is not None and newest < furthest,
            "leftOut": len(by_rank) - len(kept),
        },
        time_spent={}
        if spent is None
        else {name: value for name in TIME_CATEGORIES if (value := getattr(spent, name)) is not None},
        workers={rank.rank: rank.worker for rank in kept},
        figures={
            figure: array("f", (_number(getattr(rank, attribute, None)) for rank in kept))
            for figure, attribute in RANK_FIGURES.items()
        },
    )


def _values(sample: Sample, figure: str, ranks: Sequence[int]) -> list[float | None]:
    found = dict(zip(sample.workers, sample.figures[figure], strict=True))
    values = (found.get(rank, math.nan) for rank in ranks)
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _number(value: float | None) -> float:
    return math.nan if value is None else min(max(value, -3e38), 3e38)
