"""An attempt's ranks are observed from outside: whether they are up, their progress, and their silence."""

from __future__ import annotations

import math
import os
import time
from typing import Optional

from trainmaster_operator.agent.hang.hung_rank import as_notice, is_over
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.process.run import RunProcesses
from trainmaster_operator.agent.progress.recorder import Counters
from trainmaster_operator.agent.progress.sources import Heartbeats, Sources
from trainmaster_operator.agent.progress.usual import Usual
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.ranks import RankProgress, RankState
from trainmaster_operator.wire.stream import ProgressLine

LINE_SECONDS = 1.0
"""The minimum time between two lines of progress."""
POLL_SECONDS = 0.25
"""The time between two reads of the progress files."""
FIRST_POLLS_SECONDS = 0.05
"""The time between two reads until the ranks are up. It is short because the reported duration of a restart ends when
the ranks are up."""
SLOWER_AFTER_SECONDS = 2.0
"""A rank that joins may load for minutes, so after this time its file is read less and less often."""
JUST_OVER_SECONDS = 0.005
"""Added to a deadline, because a rank that has been silent for exactly its limit isn't over it yet."""
STOPPED_SECONDS = 3.0
"""An agent that polls this much too late was stopped itself, as on a paused node."""
UP_SECONDS = 1.0
"""Ranks that have lived this long count as up, even if they write no progress."""


class Observation:
    """Observation observes an attempt's ranks. In a continued attempt, ranks count as up once they are in its group."""

    def __init__(self, settings: AgentSettings, run: RunProcesses, usual: Optional[Usual] = None) -> None:
        self._settings = settings
        self._attempt = run.attempt
        # When ranks continue in a new group, their silence is counted from the present time on.
        self._started_at = started_at = time.monotonic() if run.regrouped_at else run.started_at
        self._own = run.ranks
        self._present = [run.ranks[local_rank] for local_rank in run.present]
        self._heartbeats = Heartbeats(os.path.join(run.folder, "progress"), self._own, run.regrouped_at)
        self._continued = run.regrouped_at > 0 or len(self._present) < len(self._own)
        counters = Counters(run.questionable, settings.progress_timeout)
        printed, learnt = run.output.printed, usual or Usual()
        self.sources = Sources(settings, self._own, started_at, self._heartbeats, printed, counters, learnt)
        self._published_at = 0.0
        self._unpublished = False
        self.up = False
        """Whether the ranks have been seen to be up."""
        self.deadline = started_at + FIRST_POLLS_SECONDS
        """When `poll` is due, on the monotonic clock."""

    @property
    def ranks(self) -> dict[int, RankProgress]:
        return {rank: progress for rank, progress in self.sources.ranks.items() if rank in self._present}

    @property
    def words(self) -> dict[int, str]:
        """Returns the ranks' readiness to continue, by local rank, including those that wait to join."""
        found = self._heartbeats.ranks.items()
        return {rank - self._own[0]: progress.continuing for rank, progress in found if progress.continuing}

    @property
    def groups(self) -> dict[int, int]:
        """Returns the attempt of each rank's group, if the rank reports it, by local rank."""
        found = self._heartbeats.ranks.items()
        return {rank - self._own[0]: progress.group for rank, progress in found if progress.group is not None}

    @property
    def _settled(self) -> bool:
        """Returns whether no change is expected of the ranks, so that their files may be read less often."""
        if not self._continued:
            return self.up
        formed = all(self.groups.get(rank - self._own[0]) == self._attempt for rank in self._present)
        joining = [rank for rank in self._own if rank not in self._present]
        return formed and all(self.words.get(rank - self._own[0]) == "ready" for rank in joining)

    def poll(self, all_started: bool, now: Now) -> Optional[ProgressLine]:
        """Read the sources; returns the progress to publish now.

        `all_started`: whether all of this worker's ranks have been started.
        """
        if now.steady > self.deadline + STOPPED_SECONDS:
            self.sources.wake(now.steady)
        self.refresh(now.steady)
        if all_started and (self.ranks or now.steady - self._started_at > UP_SECONDS):
            self.up = True
        waited = now.steady - self._started_at
        slower = min(max(1.0, waited / SLOWER_AFTER_SECONDS) * FIRST_POLLS_SECONDS, POLL_SECONDS)
        self.deadline = now.steady + min(POLL_SECONDS if self._settled else slower, self._until_over(now.steady))
        if self._unpublished and now.steady - self._published_at >= LINE_SECONDS:
            return self._line(now)
        return None

    def finish(self, now: Now) -> Optional[ProgressLine]:
        """Returns the last progress of ranks that are gone, or whose end is about to be reported."""
        self.refresh(now.steady)
        return self._line(now) if self._unpublished else None

    def refresh(self, now: float) -> None:
        """Read the sources again before a decision, so that the decision doesn't use old data."""
        self._unpublished = self.sources.poll(now) or self._unpublished

    def states(self, now: float) -> dict[int, RankState]:
        """Returns the present states of this worker's ranks in the group, without those that wait for lost ranks."""
        return {rank: self.sources.state(rank, now) for rank in self._present if not self._is_idle(rank)}

    def _is_idle(self, rank: int) -> bool:
        """Returns whether a rank of the group waits for lost ranks, so that no rank waits for it."""
        progress = self._heartbeats.ranks.get(rank)
        return progress is not None and (progress.continuing, progress.group) == ("idle", self._attempt)

    @property
    def first_step_at(self) -> Optional[float]:
        """Returns when the last rank with known progress finished its first step; None if any hasn't."""
        done = {rank: at for rank, at in self.sources.first_step_at.items() if rank in self._present}
        return max(done.values()) if done and len(done) == len(self.ranks) else None

    def _until_over(self, now: float) -> float:
        """Returns the seconds until a rank exceeds its limit, if all ranks stay silent."""
        states = self.states(now).values()
        watched = (each for state in states for each in (state, as_notice(state)) if each.limit_seconds)
        left = (each.limit_seconds - (each.silent_seconds or 0.0) for each in watched if not is_over(each))
        return min(left, default=math.inf) + JUST_OVER_SECONDS

    def _line(self, now: Now) -> ProgressLine:
        self._unpublished = False
        self._published_at = now.steady
        return ProgressLine(self._attempt, self._settings.worker, dict(self.ranks), now.wall)
