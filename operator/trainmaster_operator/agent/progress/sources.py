"""This module decides which source of a rank's progress counts, and how long the rank has shown no sign of life.

The sources, in order of precedence:

- The progress file (`Heartbeats`), which the script itself writes.
- The reports of Hugging Face's Trainer. The Trainer's bar in the rank's output, recognised by the same total of steps,
  shows new steps before the next report.
- The rank's output, matched with the job's `spec.progress`, or with lines that only training prints.
- torch's collectives, which only show that a rank waits.

With the first source, only new progress is a sign of life. With the other sources, any output and advancing collectives
are signs of life too, because an evaluation or a checkpoint between two reports may be long. With the job's own
pattern, only matching lines are signs of life. A rank whose lines are recognised without a setting is never restarted
by them; people are informed if it is silent for long.

`Sources` also teaches `usual` how long the silences between signs of life are.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import Any, Optional

from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.progress.recorder import Counters
from trainmaster_operator.agent.progress.trainer import TrainerReports
from trainmaster_operator.agent.progress.usual import LEARNT_LIMIT, STEPS, Limits, Usual
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.limits import MAX_PROGRESS_FILE_BYTES
from trainmaster_operator.wire.log_rules import NONE
from trainmaster_operator.wire.ranks import RankProgress, RankState
from trainmaster_operator.wire.values import loads, whole

REPORT_SECONDS = 0.2
"""The usual time between two reports of steps. Scripts don't write every step to the disk, and bars don't print every
step (tqdm: 0.1 s)."""
PROGRESS_LIMIT, FIRST_STEP_LIMIT = "failurePolicy.hang.progressSeconds", "failurePolicy.hang.firstStepSeconds"
INTERVAL_SECONDS = 5.0
"""The minimum interval for measuring steps. The agent sees steps up to 0.25 s late (`hang/observation`), only a
twentieth of this interval."""
INTERVALS = 7
COUNT_BYTES = 8


class Sources:
    """Sources combines the progress of an attempt's ranks on this worker, started at `started_at`."""

    def __init__(
        self,
        settings: AgentSettings,
        ranks: range,
        started_at: float,
        heartbeats: Heartbeats,
        printed: Printed,
        counters: Counters,
        usual: Usual,
    ) -> None:
        self._settings, self._own, self._started_at, self._heartbeats = settings, ranks, started_at, heartbeats
        self._printed, self._counters = printed, counters
        self._usual = usual
        self._alive_at: dict[int, float] = {}
        """The newest sign of life of each rank whose silences are learnt."""
        self._sections: dict[int, str] = {}
        """The section in which each rank was at that time."""
        self._awake_at = started_at
        """When this agent last found a gap in its own clock. All silences are counted from then on at the earliest."""
        self._trainer = TrainerReports()
        self._step_times = {rank: StepTimes() for rank in ranks}
        self._reported_at = started_at
        self._changed = False
        self._first_report_with_step: Optional[float] = None
        self.ranks: dict[int, RankProgress] = {}
        """The progress that counts, by rank, for ranks whose progress is known."""

    def receive(self, body: object, now: float) -> None:
        """Record a report of the Trainer in this worker's first rank. Only the job's rank 0 sends reports."""
        if self._trainer.receive(body):
            self._reported_at = now
        step = None if self._trainer.progress is None else self._trainer.progress.step
        if step and self._first_report_with_step is None:
            self._first_report_with_step = time.time()
        self._changed = True

    def poll(self, now: float) -> bool:
        """Read the changed sources; returns whether there were any."""
        changed = self._heartbeats.poll(now) or self._changed or self._printed.changed
        self._changed = self._printed.changed = False
        if changed:
            found = {rank: self._progress(rank) for rank in self._own}
            self.ranks = {
                rank: self._step_times[rank].complete(progress, now)
                for rank, progress in found.items()
                if progress is not None
            }
            self._learn()
        self._counters.poll([rank for rank in self._own if self._may_wait(rank, now)], now)
        return changed

    def wake(self, now: float) -> None:
        """Count all silences from now on, because this agent was stopped, and its ranks probably too."""
        self._awake_at = now
        self._alive_at.clear()

    def _learn(self) -> None:
        """Teach the silences that have ended. The time until the first step is taught once."""
        first_step_at = self.first_step_at
        for rank, progress in self.ranks.items():
            alive_at, before = self._seen_at(rank), self._alive_at.get(rank)
            if rank not in first_step_at or alive_at is None or alive_at == before:
                continue
            if before is not None:
                self._usual.add(self._sections[rank], alive_at - before)
            elif rank not in self._sections:
                self._usual.add_first_step(alive_at - self._started_at)
                if self._is_watched(rank):
                    self._usual.reporting.add(rank)
            self._alive_at[rank], self._sections[rank] = alive_at, progress.section or ""

    def state(self, rank: int, now: float) -> RankState:
        """Returns a rank's present state, with its silence if the rank is watched or people are informed about it."""
        progress = self.ranks.get(rank)
        if self._is_watched(rank):
            silent, unreported = self.silent_seconds(rank, now), self._unreported(rank, progress)
            return observe_rank(self._settings, progress, silent, unreported, self._usual)
        state = self._state_by_collectives(rank)
        if progress is not None:
            if self._printed.given_up or (self._has_trainer(rank) and self._trainer.is_over):
                return state
            shown = observe_rank(self._settings, progress, self._quiet_seconds(rank, now), 0, self._usual)
            return state._replace(
                step=shown.step,
                section=shown.section,
                quiet_seconds=shown.quiet_seconds,
                notice_seconds=shown.notice_seconds,
                usual_seconds=shown.usual_seconds,
            )
        if rank in self._usual.reporting and not state.limit_seconds:
            # The rank has made steps in an earlier attempt, so it should in this one.
            return observe_rank(self._settings, RankProgress(), now - self._awake_at, 0, self._usual)
        return state

    def _unreported(self, rank: int, progress: Optional[RankProgress]) -> int:
        """Returns how many steps a rank may have done since its last report; 0 if the rank writes every step."""
        if progress is None or progress.step is None or rank in self._heartbeats.counted:
            return 0
        seconds = self._step_times[rank].estimate(progress)
        return int(min(REPORT_SECONDS / seconds, progress.step)) if seconds and seconds > 0 else 0

    def silent_seconds(self, rank: int, now: float) -> float:
        """Returns how long a rank has shown no progress, and no other sign of life if such signs count for it.

        An unwatched rank counts as silent since the start, but at most for a step's limit, because ranks that wait for
        it have been silent for that long.
        """
        if not self._is_watched(rank):
            return min(now - self._started_at, self._settings.progress_timeout)
        return self._quiet_seconds(rank, now)

    def _quiet_seconds(self, rank: int, now: float) -> float:
        seen_at = self._seen_at(rank)
        return now - max(self._awake_at, self._started_at if seen_at is None else seen_at)

    def _seen_at(self, rank: int) -> Optional[float]:
        """Returns the time of a rank's newest sign of life; None if there was none in this attempt."""
        if rank in self._heartbeats.ranks:
            return self._heartbeats.progressed_at.get(rank)
        printed, has_trainer = self._printed, self._has_trainer(rank)
        seen = [{rank: self._reported_at} if has_trainer else {}, printed.progressed_at]
        if has_trainer or not printed.is_strict:
            seen.append(printed.printed_at)
        if not printed.is_strict:
            seen.append(self._counters.moved_at)
        return max((times[rank] for times in seen if rank in times), default=None)

    @property
    def first_step_at(self) -> dict[int, float]:
        """Returns when each rank finished the attempt's first step (seconds since the epoch), for ranks where known."""
        found = dict(self._heartbeats.first_step_at)
        for rank in self.ranks.keys() - self._heartbeats.ranks.keys():
            reported = self._first_report_with_step if self._has_trainer(rank) else None
            first = self._printed.first_step_at.get(rank, reported)
            if first is not None:
                found[rank] = first
        return found

    def _progress(self, rank: int) -> Optional[RankProgress]:
        written = self._heartbeats.ranks.get(rank)
        if written is not None:
            return written
        rules = self._printed.rules.get(rank)
        printed = None if rules is None else rules.progress
        reported = self._trainer.progress if self._has_trainer(rank) else None
        if reported is None:
            return printed
        if printed is not None:
            known = {name: value for name, value in reported._asdict().items() if value not in (None, "", ())}
            reported = printed._replace(**known)
        bar = None if rules is None or reported.total_steps is None else rules.bars.get(reported.total_steps)
        if bar is None or not bar.n or bar.n < (reported.step or 0):
            return reported
        # The Trainer's bar has advanced since its report.
        eta = reported.eta_seconds if bar.step_seconds is None else (bar.total - bar.n) * bar.step_seconds
        return reported._replace(step=bar.n, step_seconds=bar.step_seconds, eta_seconds=eta)

    def _has_trainer(self, rank: int) -> bool:
        return rank == self._own[0] and self._trainer.progress is not None

    def _is_watched(self, rank: int) -> bool:
        if rank in self._heartbeats.ranks:
            return True
        if self._has_trainer(rank):
            return not self._trainer.is_over
        return rank in self.ranks and self._printed.is_asked_for

    def _may_wait(self, rank: int, now: float) -> bool:
        """Returns whether to ask a rank for its collectives, because it never reported progress or is silent now."""
        limit = self._settings.progress_timeout
        if rank in self._heartbeats.ranks or not limit or self._settings.progress_preset == NONE:
            return False
        return not self._is_watched(rank) or self.silent_seconds(rank, now) > limit / 2

    def _state_by_collectives(self, rank: int) -> RankState:
        """Returns the state of a rank about which only its present collective is known."""
        waiting = self._counters.waiting(rank)
        if waiting is None:
            return RankState()
        recorded, seconds = waiting
        limit, name = self._settings.progress_timeout, PROGRESS_LIMIT
        if not recorded.oldest_open:
            limit, name = self._settings.first_step_timeout, FIRST_STEP_LIMIT
        if limit and recorded.timeout > limit:
            limit, name = recorded.timeout, "the collective's own timeout"
        return RankState(None, "", seconds, limit, name, not recorded.oldest_open)


class StepTimes:
    """StepTimes derives the seconds per step of one rank in one attempt from the times of its steps.

    It counts steps over intervals of INTERVAL_SECONDS, or of one step if a step takes longer, and uses the median of
    the last INTERVALS intervals. An evaluation or a checkpoint only lengthens one interval, so it changes nothing. A
    change of speed shows within half a minute, or within four steps if steps are long. The time before the first step
    is setup and doesn't count. A rank that reports step 0 first may still continue from a checkpoint's step.
    """

    def __init__(self) -> None:
        self._says_them = False
        """Whether the rank has ever reported the seconds per step itself; if so, nothing is derived."""
        self._last: Optional[int] = None
        self._began: Optional[tuple[int, float]] = None
        """The step at which the present interval began, and the time."""
        self._at = 0.0
        """When the newest step was seen."""
        self._intervals: deque[float] = deque(maxlen=INTERVALS)

    def complete(self, progress: RankProgress, now: float) -> RankProgress:
        """Returns the progress with its derived `step_seconds`, if available. `now`: on the monotonic clock."""
        if progress.step_seconds is not None:
            self._says_them = True
        if self._says_them or progress.step is None:
            return progress
        if progress.step != self._last:
            self._observe(progress.step, progress.start_step or 0, now)
        if not self._intervals:
            return progress
        # This is the median, the lower one of two, because pauses in training only lengthen intervals. It is computed
        # here because the import of `statistics` would cost 15 ms of an agent's start.
        return progress._replace(step_seconds=sorted(self._intervals)[(len(self._intervals) - 1) // 2])

    def estimate(self, progress: RankProgress) -> Optional[float]:
        """Returns the seconds per step, even if they are still too inexact to be reported; None if unknown."""
        if progress.step_seconds is not None or self._began is None or self._last is None:
            return progress.step_seconds
        step, since = self._began
        return (self._at - since) / (self._last - step) if self._last > step else None

    def _observe(self, step: int, start: int, now: float) -> None:
        if self._last is not None and step < self._last:
            # The step is lower than before: the rank continues from an earlier step, or its loop has rolled back.
            self._intervals.clear()
            self._began = None
        self._last, self._at = step, now
        if self._began is None:
            self._began = (step, now) if step > start else None
            return
        before, since = self._began
        if now - since >= INTERVAL_SECONDS:
            self._intervals.append((now - since) / (step - before))
            self._began = step, now


class Heartbeats:
    """Heartbeats reads the newest progress of each rank from one attempt's files.

    A rank may rewrite its progress file less often than every step, and write only the step to a second file in every
    step. Such a step is exact, so the diagnosis of hangs compares ranks by it.
    """

    def __init__(self, path: str, ranks: range, since: float = 0.0) -> None:
        self._since = since
        """Times in files that are earlier than this (seconds since the epoch) belong to an earlier attempt."""
        # The file without a number is the first rank's, unless that rank also writes a file with its number.
        self._files = [(ranks[0], path), *((rank, f"{path}.{rank}") for rank in ranks)]
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._written: dict[str, RankProgress] = {}
        self._counts: dict[str, Optional[int]] = {}
        self.counted: set[int] = set()
        """The ranks whose steps are exact."""
        self.ranks: dict[int, RankProgress] = {}
        """The newest well-formed progress of each rank that has written any."""
        self.progressed_at: dict[int, float] = {}
        """When each rank's `step` or `section` last changed, on the monotonic clock."""
        self.first_step_at: dict[int, float] = {}
        """When each rank finished the first step (seconds since the epoch): as it reported, or its file's time."""

    def poll(self, now: float) -> bool:
        """Read the changed files; returns whether there were any."""
        changed = False
        for rank, path in self._files:
            text = self._read(path)
            # The file of the step is read after the progress file, because a rank writes it first.
            count = _read_count(f"{path}.step")
            written = None if text is None else parse_progress(text)
            if written is None and (path not in self._written or count == self._counts.get(path)):
                continue
            if written is not None:
                times = {name: getattr(written, name) for name in ("joined_at", "restored_at", "first_step_at")}
                earlier = [name for name, at in times.items() if at is not None and at < self._since]
                unknown: dict[str, Any] = dict.fromkeys(earlier)
                self._written[path] = written._replace(**unknown)
            self._counts[path], progress = count, self._written[path]
            if rank not in self.first_step_at and self._has_stepped(progress):
                self.first_step_at[rank] = progress.first_step_at or self._seen[path][1] / 1e9
            if count is not None:
                self.counted.add(rank)
                progress = progress._replace(step=count)
            before = self.ranks.get(rank)
            if before is None or (before.step, before.section) != (progress.step, progress.section):
                self.progressed_at[rank] = now
            self.ranks[rank] = progress
            changed = True
        return changed

    def _has_stepped(self, progress: RankProgress) -> bool:
        if self._since:
            return progress.first_step_at is not None
        return progress.step is not None and progress.step > (progress.start_step or 0)

    def _read(self, path: str) -> Optional[bytes]:
        """Returns a file's content if it has changed, else None."""
        with contextlib.suppress(OSError):
            status = os.stat(path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._seen.get(path) != seen:
                with open(path, "rb") as file:
                    text = file.read(MAX_PROGRESS_FILE_BYTES + 1)
                self._seen[path] = seen
                return text
        return None


def _read_count(path: str) -> Optional[int]:
    try:
        with open(path, "rb") as file:
            data = file.read(COUNT_BYTES + 1)
    except OSError:
        return None
    return whole(int.from_bytes(data, "little", signed=True)) if len(data) == COUNT_BYTES else None


def parse_progress(text: bytes) -> Optional[RankProgress]:
    """Returns the well-formed fields of one progress file; None if it isn't a JSON object."""
    if len(text) > MAX_PROGRESS_FILE_BYTES:
        return None
    try:
        return RankProgress.salvage(loads(text))
    except ValueError:
        return None


def observe_rank(
    settings: AgentSettings,
    progress: RankProgress | None,
    silent_seconds: float,
    unreported: int = 0,
    usual: Optional[Usual] = None,
) -> RankState:
    """Returns a rank's state, judged by its progress; `progress` is None if the rank has never reported any.

    `unreported`: how many steps the rank may have done since that report. `usual`: the durations learnt so far.
    """
    if progress is None:
        return RankState()
    section, has_stepped = progress.section or "", (progress.step or 0) > (progress.start_step or 0)
    learnt = Limits(0.0, 0.0)
    if usual is not None:
        learnt = usual.limits(section) if has_stepped else usual.first_limits()
    seconds, limit, patient = settings.progress_timeout, PROGRESS_LIMIT, False
    if progress.section_seconds:
        seconds, limit, patient = progress.section_seconds, "sectionSeconds", True
    elif not has_stepped:
        seconds, limit, patient = settings.first_step_timeout, FIRST_STEP_LIMIT, True
        if settings.learns_first_step and usual is not None and usual.first_step is not None:
            seconds, limit = learnt.restart, LEARNT_LIMIT
    elif settings.learns_progress and usual is not None:
        seconds, limit, patient = learnt.restart, LEARNT_LIMIT, section not in STEPS
    takes = progress.step_seconds if has_stepped and section in STEPS and progress.step_seconds else learnt.usual
    return RankState(
        progress.step,
        section,
        silent_seconds,
        seconds,
        limit,
        patient,
        unreported=unreported,
        quiet_seconds=silent_seconds,
        notice_seconds=learnt.notice,
        usual_seconds=None if takes is None else float(f"{takes:.3g}"),
    )
