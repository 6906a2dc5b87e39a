"""Computes progress and recovery from the ranks' reports.

Progress contains rank 0's step and loss, and the samples per second of all ranks. A recovery contains the durations
from a fault to the first step of the next attempt, as the workers measured them, and the number of repeated steps.
"""

from __future__ import annotations

import math
from typing import Any

from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus, Progress, RecoveryTimes, Stall
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.transition import condition
from trainmaster_operator.wire.log_rules import FRAMEWORKS, NONE
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import Recovery

# Seconds after which ranks that are up and report nothing get a notice, with and without a rule in the spec.
UNREPORTED_SECONDS, UNMATCHED_SECONDS = 60.0, 120.0
# Seconds between two writes for progress alone, so that `kubectl get -w` stays readable and the API server idle.
INTERVAL = 5.0


def due_progress(situation: Situation, *, is_terminal: bool) -> Progress | None:
    """Returns the newest progress, or the published progress while that is younger than INTERVAL.

    A job's last progress, progress with a new section, and the begin and end of a stall are returned at once.
    """
    old, new = situation.status.progress, newest_progress(situation)
    if old is None or new is None or is_terminal or (old.section, old.stall) != (new.section, new.stall):
        return new
    published = to_seconds(old.reported_at)
    # Compare with the clock, not with the newest report, which may be the last one if the ranks hang. abs() prevents
    # a long wait after the clock was set back.
    is_young = published is not None and abs(situation.now - published) < INTERVAL
    return old if is_young else new


def progress_due_at(situation: Situation) -> float | None:
    """Returns when unpublished progress is due, or None."""
    old = situation.status.progress
    published = None if old is None else to_seconds(old.reported_at)
    if situation.terminal or published is None or _news_at(situation) is None:
        return None
    return published + INTERVAL


def newest_progress(situation: Situation) -> Progress | None:
    """Returns the published progress, updated with the newest report of the current attempt, and with its stall."""
    progress, stall = _reported_progress(situation), _stall(situation)
    if progress is None and stall is None:
        return None
    progress = progress or Progress(attempt=situation.status.attempt)
    return progress if progress.stall == stall else progress.model_copy(update={"stall": stall})


def _stall(situation: Situation) -> Stall | None:
    """Returns the silence of the present ranks that their leader reports. Without a leader, the known one is kept."""
    line, progress, observed = situation.observed.stall, situation.status.progress, situation.observed
    if not situation.running:
        return None
    if line is None:
        is_current = progress is not None and is_of_current_ranks(situation.status, progress.attempt)
        return progress.stall if progress is not None and is_current and not observed.stream.connected else None
    if line.attempt != situation.status.attempt:
        return None
    return Stall(
        since=to_text(min(line.since, situation.now)),
        section=line.section or None,
        usual_seconds=line.usual_seconds,
        rank=line.rank,
        message=line.message,
        restart_at=to_text(line.since + line.restart_seconds) if line.restart_seconds else None,
    )


def _reported_progress(situation: Situation) -> Progress | None:
    old, attempt = situation.status.progress, situation.status.attempt
    reported_at = _news_at(situation)
    if reported_at is None:
        return old
    if old is None:
        old = Progress()
    ranks = {rank: found for by_worker in situation.observed.progress.values() for rank, found in by_worker.items()}
    # Rank 0, or the lowest rank that reported.
    first = ranks[min(ranks)]
    samples = [rank.samples_per_second for rank in ranks.values() if rank.samples_per_second is not None]
    is_same_attempt = is_of_current_ranks(situation.status, old.attempt)
    waits = ("data_seconds", "checkpoint_seconds", "evaluate_seconds") if is_same_attempt else ()
    return Progress(
        attempt=attempt,
        step=old.step if first.step is None and is_same_attempt else first.step,
        furthest_step=old.furthest_step,
        total_steps=first.total_steps,
        epoch=first.epoch,
        # Up to 17 digits are hard to read.
        loss=float(f"{first.loss:.6g}") if first.loss is not None and math.isfinite(first.loss) else None,
        samples_per_second=_finite(sum(samples)) if samples else None,
        eta_seconds=_eta(first),
        section=first.section,
        **{name: getattr(old, name) for name in waits},
        goodput=old.goodput,
        result=dict(first.result) or old.result,
        reported_at=reported_at,
    )


def with_silence(situation: Situation, progress: Progress | None, phase: str | None) -> Progress | None:
    """Returns the progress with a notice if the ranks have run for a while and reported nothing, else without one.

    `phase` is the job's phase after the pass.
    """
    sentence, noticed = _sentence(situation), None if progress is None else progress.notice
    due = reports_nothing_at(situation) if phase == "Running" else None
    if due is not None and due <= situation.now and noticed is None:
        return (progress or Progress()).model_copy(update={"notice": sentence})
    if progress is None or noticed != sentence or (phase == "Running" and reports_nothing(situation)):
        return progress
    without = progress.model_copy(update={"notice": None})
    return None if without == Progress() else without


def reports_nothing_at(situation: Situation) -> float | None:
    """Returns when the notice about ranks that report nothing is due; None if they do, or if that can't be known."""
    up, spec = condition(situation.status.conditions, "Running"), situation.spec.progress
    is_up = situation.status.phase == "Running" and up is not None and up.status == "True"
    if spec is not None and spec.preset == NONE:
        return None
    if not is_up or up is None or not situation.has_leaders_reports or not reports_nothing(situation):
        return None
    has_rule = spec is not None and (spec.pattern is not None or spec.preset in FRAMEWORKS)
    return situation.after(up.last_transition_time, UNMATCHED_SECONDS if has_rule else UNREPORTED_SECONDS)


def reports_nothing(situation: Situation) -> bool:
    """Returns whether the ranks of this attempt have reported nothing, and no earlier ones have reported a step."""
    status, observed = situation.status, situation.observed
    published = status.progress or Progress()
    has_now = observed.progress_attempt == status.attempt and any(observed.progress.values())
    had = published.reported_at is not None and is_of_current_ranks(status, published.attempt)
    return not has_now and not had and published.furthest_step is None


def _sentence(situation: Situation) -> str:
    spec = situation.spec.progress
    if spec is not None and spec.pattern is not None:
        return (
            f"spec.progress.pattern has matched no line for {UNMATCHED_SECONDS / 60:.0f} min: compare it with the "
            "lines that the script prints (docs/progress.md)"
        )
    if spec is not None and spec.preset in FRAMEWORKS:
        return (
            f"spec.progress.preset {spec.preset} has matched no line for {UNMATCHED_SECONDS / 60:.0f} min: if the "
            "script prints other lines, set spec.progress.pattern instead (docs/progress.md)"
        )
    return (
        "the script reports no progress: if it is training, call `from trainloop import progress; "
        "progress.heartbeat(step)` in each step, or set spec.progress.pattern to the lines that it prints "
        "(docs/progress.md)"
    )


def is_of_current_ranks(status: JobStatus, attempt: int | None) -> bool:
    """Returns whether an attempt is the current attempt, or one that the current attempt continues."""
    began = status.attempt if status.continues is None else status.continues
    return attempt is not None and began <= attempt <= status.attempt


def _news_at(situation: Situation) -> str | None:
    """Returns the time of the current attempt's newest report if the report isn't published yet.

    Every pass calls this function, so it doesn't read the progress of each rank: a job may have thousands of ranks.
    """
    observed, published, at = situation.observed, situation.status.progress, situation.observed.progress_at
    if observed.progress_attempt != situation.status.attempt or at is None or not any(observed.progress.values()):
        return None
    reported_at = to_text(at)
    return None if published is not None and published.reported_at == reported_at else reported_at


def _finite(value: float) -> float | None:
    """Returns a number with one decimal, or None for infinity and NaN, which JSON doesn't support."""
    return round(value, 1) if math.isfinite(value) else None


def _eta(first: RankProgress) -> float | None:
    if first.eta_seconds is not None:
        return _finite(max(first.eta_seconds, 0.0))
    if first.step is None or first.total_steps is None or first.step_seconds is None:
        return None
    return _finite(max(first.total_steps - first.step, 0) * max(first.step_seconds, 0.0))


def with_recovery(situation: Situation, status: JobStatus) -> list[Failure]:
    """Returns the failures of a status. The recovery is added to the newest one when all workers have reported it.

    Workers whose pod didn't exist at the end of the previous attempt report no recovery.
    """
    failures, observed = status.failures, situation.observed
    is_current = observed.progress_attempt == status.attempt == situation.status.attempt
    if not failures or not is_current or failures[0].attempt != status.attempt - 1:
        return failures
    known = [recovery for worker, recovery in observed.recoveries.items() if worker in situation.workers]
    if not known or any(recovery.first_step is None for recovery in known):
        return failures
    times = _recovery_times(known, _repeated_steps(situation, failures[0]))
    return [failures[0].model_copy(update={"recovery": times}), *failures[1:]]


def _repeated_steps(situation: Situation, failure: Failure) -> int | None:
    """Returns the number of steps repeated after a failure, or None if ranks report no steps."""
    ranks = (rank for ranks in situation.observed.progress.values() for rank in ranks.values())
    steps = ((rank.start_step, rank.step) for rank in ranks if rank.step is not None)
    begun = [step - 1 if start is None else start for start, step in steps]
    return max((failure.step or 0) - min(begun), 0) if begun else None


def _recovery_times(recoveries: list[Recovery], repeated_steps: int | None) -> RecoveryTimes:
    """Returns the durations of a recovery's parts. Each part ends when the slowest worker has finished it."""
    reached = 0.0
    parts: dict[str, Any] = {}
    for part in Recovery._fields:
        moments = [at for recovery in recoveries if (at := getattr(recovery, part)) is not None]
        if len(moments) == len(recoveries):
            slowest = max(reached, *moments)
            parts[part] = round(slowest - reached, 3)
            reached = slowest
    return RecoveryTimes(seconds=round(reached, 3), repeated_steps=repeated_steps, **parts)
