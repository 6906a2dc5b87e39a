"""How far training is, from what the ranks report: rank 0's step and loss, and everybody's samples."""

from __future__ import annotations

import math

from trainmaster.api.v1alpha1 import Progress
from trainmaster.reconciling.situation import Situation
from trainmaster.reconciling.times import to_seconds, to_text
from trainmaster.wire.progress import RankProgress

# Status is told at most this often; `kubectl get -w` stays readable and the API server idle.
INTERVAL = 5.0


def progress(situation: Situation, *, ended: bool) -> Progress | None:
    """The progress to report. `ended`: tell the last word, however young the one before it is."""
    old = situation.status.progress
    observed = situation.observed
    ranks = {rank: told for told_by in observed.progress.values() for rank, told in told_by.items()}
    at = observed.progress_at
    if observed.progress_attempt != situation.status.attempt or not ranks or at is None:
        return old
    reported_at = to_text(at)
    if old is not None and old.reported_at is not None:
        # abs: after a clock was set back, news must not wait until it has caught up.
        young = abs(at - (to_seconds(old.reported_at) or 0.0)) < INTERVAL
        if old.reported_at == reported_at or (young and not ended and old.section == _lead(ranks).section):
            return old
    lead = _lead(ranks)
    samples = [told.samples_per_second for told in ranks.values() if told.samples_per_second is not None]
    result = dict(lead.result) or (old.result if old is not None else None)
    return Progress(
        step=lead.step,
        total_steps=lead.total_steps,
        epoch=lead.epoch,
        loss=_readable(lead.loss),
        samples_per_second=_finite(sum(samples)) if samples else None,
        eta_seconds=_eta(lead),
        section=lead.section,
        goodput=old.goodput if old is not None else None,
        result=result,
        reported_at=reported_at,
    )


def _lead(ranks: dict[int, RankProgress]) -> RankProgress:
    """Rank 0's word, or the lowest rank's that spoke."""
    return ranks[min(ranks)]


def _readable(value: float | None) -> float | None:
    """As many digits as people read in a column; a float's own are up to 17."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _finite(value: float) -> float | None:
    """A sum or a product with one decimal; None where it is beyond a float's range: JSON has no infinity."""
    return round(value, 1) if math.isfinite(value) else None


def _eta(lead: RankProgress) -> float | None:
    if lead.eta_seconds is not None:
        return _finite(max(lead.eta_seconds, 0.0))
    if lead.step is None or lead.total_steps is None or lead.step_seconds is None:
        return None
    return _finite(max(lead.total_steps - lead.step, 0) * max(lead.step_seconds, 0.0))
