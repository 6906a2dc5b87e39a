"""Which of all that is known of a rank's progress counts, and for how long the rank has shown no life.

In this order; a source that is nearer to what the script itself says goes before the others:

1. the progress file (`hang/heartbeats`): the script's own word.
2. What Hugging Face's Trainer reports. What it leaves out is filled in from what the rank prints: its bar, which is the
   one with as many steps as the Trainer has reported, shows steps sooner than reports come.
3. What the rank prints, by the job's `spec.progress`, or by what nothing but training prints.
4. torch's collectives, which say no step, only that a rank waits.

Whichever it is, what a step takes is derived where the rank never says it (`step_times`).

Only the first is watched by itself. Of the others a rank counts as alive for longer than they say: while it prints, and
while its collectives go on, because nobody has said that an evaluation or a checkpoint between two reports is short.
With a pattern of the job's own it is the lines that match alone, and what is recognised without being asked for is
shown and never watched.
"""

from __future__ import annotations

import time
from typing import Optional

from trainmaster_operator.agent.hang.heartbeats import Heartbeats
from trainmaster_operator.agent.hang.rank_states import observe_rank, observe_waiting
from trainmaster_operator.agent.progress.counters import Counters
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.progress.step_times import StepTimes
from trainmaster_operator.agent.progress.trainer_reports import TrainerReports
from trainmaster_operator.agent.settings import Settings
from trainmaster_operator.wire.log_rules import NONE
from trainmaster_operator.wire.ranks import RankProgress, RankState

REPORT_SECONDS = 0.2
"""Reports of steps are so far apart: scripts spare the disk, and bars their terminal (tqdm: 0.1)."""


class Sources:
    """Sources are those of an attempt's ranks on this worker, which were started at `started_at`."""

    def __init__(
        self,
        settings: Settings,
        ranks: range,
        started_at: float,
        heartbeats: Heartbeats,
        printed: Optional[Printed] = None,
        counters: Optional[Counters] = None,
    ) -> None:
        self._settings = settings
        self._own = ranks
        self._started_at = started_at
        self._heartbeats = heartbeats
        self._printed = printed
        self._counters = None if settings.progress_preset == NONE else counters
        self._trainer = TrainerReports()
        self._step_times = {rank: StepTimes() for rank in ranks}
        self._reported_at = started_at
        self._changed = False
        self._first_report_with_step: Optional[float] = None
        self.ranks: dict[int, RankProgress] = {}
        """The progress that counts, of each rank of which any is known."""

    def receive(self, body: object, now: float) -> None:
        """The Trainer of this worker's first rank has reported: it is the world's first process where it does."""
        if self._trainer.receive(body):
            self._reported_at = now
        step = None if self._trainer.progress is None else self._trainer.progress.step
        if step and self._first_report_with_step is None:
            self._first_report_with_step = time.time()
        self._changed = True

    def poll(self, now: float) -> bool:
        """Read what has changed; returns whether anything has."""
        changed = self._heartbeats.poll(now) or self._changed
        if self._printed is not None and self._printed.changed:
            self._printed.changed, changed = False, True
        self._changed = False
        if changed:
            found = {rank: self._progress(rank) for rank in self._own}
            self.ranks = {
                rank: self._step_times[rank].complete(progress, now)
                for rank, progress in found.items()
                if progress is not None
            }
        if self._counters is not None:
            limit = self._settings.progress_timeout
            self._counters.poll([rank for rank in self._own if self._may_wait(rank, now, limit)], now)
        return changed

    def state(self, rank: int, now: float) -> RankState:
        """Returns a rank as it is now: with its silence where it is watched."""
        if not self._is_watched(rank):
            return self._state_by_collectives(rank)
        progress = self.ranks.get(rank)
        return observe_rank(self._settings, progress, self.silent_seconds(rank, now), self._unreported(rank, progress))

    def _unreported(self, rank: int, progress: Optional[RankProgress]) -> int:
        """Returns how many steps a rank may have done since it reported one: of those with a counter there are none."""
        if progress is None or progress.step is None or rank in self._heartbeats.counted:
            return 0
        seconds = self._step_times[rank].estimate(progress)
        return int(min(REPORT_SECONDS / seconds, progress.step)) if seconds and seconds > 0 else 0

    def silent_seconds(self, rank: int, now: float) -> float:
        """Returns for how long a rank has shown no progress, and no life where that counts.

        Of a rank that isn't watched it is known in a hang that the one that waits for it was silent for the limit.
        """
        if not self._is_watched(rank):
            return min(now - self._started_at, self._settings.progress_timeout)
        if rank in self._heartbeats.ranks:
            return now - self._heartbeats.progressed_at.get(rank, self._started_at)
        printed = self._printed
        seen = [self._started_at]
        if self._has_trainer(rank):
            seen.append(self._reported_at)
        if printed is not None:
            seen.append(printed.progressed_at.get(rank, self._started_at))
            if self._has_trainer(rank) or not printed.is_strict:
                seen.append(printed.printed_at.get(rank, self._started_at))
        if self._counters is not None and not (printed is not None and printed.is_strict):
            seen.append(self._counters.moved_at.get(rank, self._started_at))
        return now - max(seen)

    @property
    def first_step_at(self) -> dict[int, float]:
        """Returns when each rank had done the attempt's first step (seconds since the epoch), as far as known."""
        found = dict(self._heartbeats.first_step_at)
        printed = {} if self._printed is None else self._printed.first_step_at
        for rank in self.ranks:
            if rank in self._heartbeats.ranks:
                continue
            first = printed.get(rank, self._first_report_with_step if self._has_trainer(rank) else None)
            if first is not None:
                found[rank] = first
        return found

    def _progress(self, rank: int) -> Optional[RankProgress]:
        written = self._heartbeats.ranks.get(rank)
        if written is not None:
            return written
        printed = None if self._printed is None else self._printed.progress(rank)
        reported = self._trainer.progress if self._has_trainer(rank) else None
        if reported is None:
            return printed
        if printed is not None:
            known = {name: value for name, value in reported._asdict().items() if value not in (None, "", ())}
            reported = printed._replace(**known)
        return self._with_bar(rank, reported)

    def _with_bar(self, rank: int, reported: RankProgress) -> RankProgress:
        """Returns the Trainer's report with the step of its bar, where that has gone on since."""
        total = reported.total_steps
        bar = None if self._printed is None or total is None else self._printed.bar(rank, total)
        if bar is None or total is None or bar.n < (reported.step or 0) or not bar.n:
            return reported
        remaining = None if bar.step_seconds is None else (total - bar.n) * bar.step_seconds
        eta = remaining if remaining is not None else reported.eta_seconds
        return reported._replace(step=bar.n, step_seconds=bar.step_seconds, eta_seconds=eta)

    def _has_trainer(self, rank: int) -> bool:
        return rank == self._own[0] and self._trainer.progress is not None

    def _is_watched(self, rank: int) -> bool:
        if rank in self._heartbeats.ranks:
            return True
        if self._has_trainer(rank):
            return not self._trainer.is_over
        return rank in self.ranks and self._printed is not None and self._printed.is_asked_for

    def _may_wait(self, rank: int, now: float, limit: float) -> bool:
        """Returns whether to ask a rank for its collectives: it says nothing itself, or nothing any more."""
        if rank in self._heartbeats.ranks or not limit:
            return False
        return not self._is_watched(rank) or self.silent_seconds(rank, now) > limit / 2

    def _state_by_collectives(self, rank: int) -> RankState:
        waiting = None if self._counters is None else self._counters.waiting(rank)
        return RankState() if waiting is None else observe_waiting(self._settings, waiting)
