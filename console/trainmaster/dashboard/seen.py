"""What this dashboard has seen of running jobs while somebody looked is kept in memory, for pages without a history.

A job's samples are thinned as they grow: every second one is dropped and the next ones come half as often, so that few
hundred cover the whole time. Answers have the shapes of the history's.
"""

from __future__ import annotations

import math
import statistics
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.job import TrainingJob
from trainmaster.client.metrics import RankMetrics
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES

MOST_JOBS = 16
MOST_SAMPLES = 480
# Of a larger job the first ranks; a history has more.
MOST_RANKS = 256
# Figures of a job over time.
SERIES = (
    *("step", "loss", "learningRate", "gradNorm", "samplesPerSecond"),
    *("stepSeconds", "slowestStepSeconds", "goodput", "redone"),
)
# Figures of ranks, by the name in a heat map.
RANK_FIGURES = {"stepSeconds": "own_seconds", "gradNorm": "gradient_norm", "loss": "loss"}


@dataclass(frozen=True)
class Sample:
    """Sample is a job and its ranks at one time; of a rank's figure that isn't known there is NaN."""

    at: float
    attempt: int
    job: dict[str, Any]
    time_spent: dict[str, float]
    workers: dict[int, int]
    figures: dict[str, array[float]]


@dataclass
class SeenJob:
    """SeenJob has the samples of one job, the oldest first, and the least seconds between two."""

    resolution: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Adds a sample, where the last one is old enough."""
        if self.samples and sample.at - self.samples[-1].at < self.resolution:
            return
        self.samples.append(sample)
        if len(self.samples) >= MOST_SAMPLES:
            self.samples = self.samples[::2]
            whole = self.samples[-1].at - self.samples[0].at
            self.resolution = whole / max(1, len(self.samples) - 1) * 0.9


class Seen:
    """Seen has the jobs that somebody looked at last."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, SeenJob] = OrderedDict()

    def add(self, job: TrainingJob, ranks: Sequence[RankMetrics]) -> None:
        """Takes a look at a running job."""
        seen = self._jobs.setdefault(job.uid, SeenJob())
        self._jobs.move_to_end(job.uid)
        seen.add(_sample(job, ranks))
        while len(self._jobs) > MOST_JOBS:
            self._jobs.popitem(last=False)

    def series(self, uid: str, since: float | None, until: float | None, points: int) -> dict[str, Any]:
        """Returns a Series."""
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
        """Returns a RankHeat."""
        samples, resolution = self._between(uid, since, until, columns)
        workers = {rank: worker for sample in samples for rank, worker in sample.workers.items()}
        # A pod may claim other ranks at each look.
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
        # The newest one is always there.
        return samples[::-1][::every][::-1], max(seen.resolution, 2.0) * every


def _sample(job: TrainingJob, ranks: Sequence[RankMetrics]) -> Sample:
    progress, spent = job.status.progress, job.status.time_spent
    # Any pod may claim any rank; of two that claim one the first counts.
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
