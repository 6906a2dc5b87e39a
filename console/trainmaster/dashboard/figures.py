"""Polls a job's agents for the ranks' figures, and keeps samples in case there is no history. All viewers share both.

Agents are polled through the API server's proxy to pods (`get pods/proxy`). Viewers without that right see recent
step times of the ranks from the history. If there is no history, they see why the figures are missing.

If a viewed job has too many samples, every second one is dropped, and later samples are taken half as often. So a few
hundred samples cover the whole time. Samples have the format of a history's tail, and the same code
draws both.
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
from trainmaster.client.metrics import RankMetrics, job_metrics
from trainmaster.client.permission import Access, put_newest, refusal
from trainmaster.dashboard.sessions import Viewer
from trainmaster.dashboard.streams import encoded
from trainmaster.history.drawing import Drawn, TimeWindow, curves_answer, heat_answer, series_answer
from trainmaster.history.figures import (
    CURVES,
    GPUS,
    HEAT,
    SYSTEM,
    Points,
    figures_of,
    of_tail,
    system_to_tail,
    to_tail,
)
from trainmaster.history.names import MORE_METRICS, kept_metrics, names_answer
from trainmaster.history.statuses import status_figures
from trainmaster.serving import Refused
from trainmaster_operator.api.records import SampleRecord, SystemRecord
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.wire.system import SystemSample

# Seconds between two polls of a job's agents. Jobs with many workers are polled less often.
SECONDS = 2.0
WORKERS_A_SECOND = 64
# Limits of the cache: number of jobs, bytes of their events, ranks of a job.
ASKED_JOBS, MOST_BYTES, ASKED_RANKS = 64, 8 * 2**20, 8_192
# Maximum characters of the reason why a worker doesn't answer.
MAX_WHY = 300
# Maximum age of figures from the history on the page (seconds).
RECENT_SECONDS = 60.0

Pods = Sequence[Mapping[str, Any]]
MOST_JOBS = 16
MOST_SAMPLES = 480
# Maximum number of a job's ranks whose figures are kept here. A history keeps the figures of all ranks.
MOST_RANKS = 256
# Maps the names of a rank's values on the page to attributes of RankMetrics.
_OF_A_RANK = {
    **{name: name for name in ("rank", "worker", "step", "loss")},
    **{"samplesPerSecond": "samples_per_second", "stepSeconds": "own_seconds"},
    **{"gradNorm": "gradient_norm", "learningRate": "learning_rate"},
}
# Maps the names of a rank's figures in a sample (api/records.py) to attributes of RankMetrics.
_COLUMNS = {
    **{"step": "step", "loss": "loss", "learning_rate": "learning_rate"},
    **{"grad_norm": "gradient_norm", "step_seconds": "own_seconds"},
}


@dataclass
class _Job:
    """_Job is the last answer of a job's agents, encoded as the event that all its pages get."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float = 0.0
    event: bytes = b""


class Figures:
    """Figures caches the last answers of the agents of each job, and samples of the recently viewed jobs."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._seen: OrderedDict[str, SeenJob] = OrderedDict()

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
                self.add(job, metrics.ranks, metrics.systems)
                ranks = [{name: getattr(rank, own) for name, own in _OF_A_RANK.items()} for rank in metrics.ranks]
                silent = {str(worker): why[:MAX_WHY] for worker, why in metrics.silent.items()}
                known.event = _event(job, ranks=ranks, silent=silent)
            return known.event

    async def recorded(self, viewer: Viewer, job: TrainingJob, why: str) -> bytes:
        """Returns the event with the ranks' last figures from the history, or with the reason why they are missing."""
        if (history := viewer.history) is None:
            return _event(job, why=why)
        since = time.time() - RECENT_SECONDS
        try:
            heat = await viewer.tenant.heavy(lambda: history.heat(job.namespace, job.name, uid=job.uid, since=since))
        except (ClientError, Refused) as error:
            return _event(job, why=f"{why} The history: {error}")
        if not heat["values"]:
            return _event(job, why=why)
        values = zip(heat["ranks"], heat["workers"], heat["values"][-1], strict=False)
        unknown = dict.fromkeys(_OF_A_RANK)
        ranks = [{**unknown, "rank": rank, "worker": worker, "stepSeconds": value} for rank, worker, value in values]
        return _event(job, at=heat["at"][-1], ranks=ranks)

    def add(
        self, job: TrainingJob, ranks: Sequence[RankMetrics], systems: Mapping[int, SystemSample] | None = None
    ) -> None:
        """Adds a sample of a running job, its ranks, and its workers' systems."""
        seen = self._seen.get(job.uid) or SeenJob()
        put_newest(self._seen, job.uid, seen, MOST_JOBS)
        seen.add(job, ranks, systems or {})

    def series(self, uid: str, window: TimeWindow, points: int, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the job's curves as a Series, with these metrics of the ranks' own."""
        seen = self._seen.get(uid) or SeenJob()
        return series_answer(seen.drawn(CURVES, window), window, points, seen.done_before, metrics).to_data()

    def names(self, uid: str) -> dict[str, Any]:
        """Returns the names of the job's curves as MetricNames."""
        return names_answer((self._seen.get(uid) or SeenJob()).names).to_data()

    def curves(self, uid: str, window: TimeWindow, points: int, names: Sequence[str]) -> dict[str, Any]:
        """Returns the job's curves of these names as MetricCurves."""
        seen = self._seen.get(uid) or SeenJob()
        drawn = {kind: seen.drawn(kind, window) for kind in (CURVES, SYSTEM, GPUS)}
        return curves_answer(names, drawn, window, points, seen.done_before).to_data()

    def heat(self, uid: str, window: TimeWindow, columns: int, figure: str) -> dict[str, Any]:
        """Returns one figure of all ranks as a RankHeat."""
        seen = self._seen.get(uid) or SeenJob()
        found = heat_answer(seen.drawn(HEAT, window), window, columns, figure).to_data()
        return {**found, "leftOut": found["leftOut"] + seen.left_out}


def _event(job: TrainingJob, **known: Any) -> bytes:
    """Returns the event of the ranks' figures. `why` is the reason if they are missing."""
    unknown = {"at": time.time(), "attempt": job.status.attempt, "ranks": [], "silent": {}, "why": None}
    return encoded("ranks", {**unknown, **known})


def seconds_between(workers: int) -> float:
    """Returns the seconds between two polls of the agents of a job with `workers` workers."""
    return max(SECONDS, workers / WORKERS_A_SECOND)


@dataclass
class SeenJob:
    """SeenJob holds one job's samples, oldest first, and the minimum time between two samples (seconds)."""

    resolution: float = 0.0
    # Each sample's time, and its figures by kind, as read from a history's tail.
    samples: list[tuple[float, dict[str, list[Points]]]] = field(default_factory=list)
    # By attempt, the furthest step before that attempt.
    done_before: dict[int, int] = field(default_factory=dict)
    # The maximum number of ranks that were left out of a sample.
    left_out: int = 0
    # The names of all figures in the samples.
    names: set[str] = field(default_factory=set)

    def add(self, job: TrainingJob, ranks: Sequence[RankMetrics], systems: Mapping[int, SystemSample]) -> None:
        """Adds a sample, unless the last one is too recent."""
        now, progress, attempt = round(time.time(), 3), job.status.progress, job.status.attempt
        if self.samples and now - self.samples[-1][0] < self.resolution:
            return
        # Any pod may claim any rank. If two pods claim the same rank, the first one's values are used.
        by_rank = {rank.rank: rank for rank in reversed(ranks)}
        kept = [by_rank[rank] for rank in sorted(by_rank)]
        columns = {name: [getattr(rank, attribute) for rank in kept] for name, attribute in _COLUMNS.items()}
        figures = status_figures(job.raw)
        if progress is not None:
            known = {"samplesPerSecond": progress.samples_per_second}
            known |= {} if kept else {"step": progress.step, "loss": progress.loss}
            figures |= {name: value for name, value in known.items() if value is not None}
            if (progress.step or 0) < (progress.furthest_step or 0):
                self.done_before.setdefault(attempt, progress.furthest_step or 0)
        # If several ranks report a metric, the first rank's value is shown.
        metrics = {name: value for rank in reversed(kept) for name, value in rank.metrics.items()}
        key = JobIdentity(job.namespace, job.name, job.uid)
        record = SampleRecord(
            *(now, key, attempt),
            *(tuple(rank.rank for rank in kept), tuple(rank.worker for rank in kept)),
            *(columns, kept_metrics(self.names, metrics)),
        )
        system = SystemRecord.of(now, key, attempt, systems)
        self.names |= {*figures_of(record), *figures, *record.metrics, *system.columns}
        self.names |= {MORE_METRICS} if len(record.metrics) < len(metrics) else set()
        self.left_out = max(self.left_out, len(kept) - MOST_RANKS)
        rows = [(now, to_tail(record, figures, MOST_RANKS)), (now, system_to_tail(system, MOST_RANKS))]
        self.samples.append((now, of_tail(rows)))
        if len(self.samples) >= MOST_SAMPLES:
            self.samples = self.samples[::2]
            whole = self.samples[-1][0] - self.samples[0][0]
            self.resolution = whole / max(1, len(self.samples) - 1) * 0.9

    def drawn(self, kind: str, window: TimeWindow) -> Drawn:
        """Returns the samples in a window, in the form in which a history reads its tail."""
        in_window = (found for at, found in self.samples if window.since <= at <= window.until)
        return Drawn(kind, [part for found in in_window for part in found[kind]])
