"""`book_time` assigns a job's time since the last status to categories (`status.timeSpent`).

Time is booked when a status is written for another reason, so accounting costs no write. It uses timestamps that
outlive an operator: those of pods, conditions and containers, and of the agents' reports. The sum of the categories is
always the time from `startTime` to `until`, the end of the booked time, in integer milliseconds. The newest report is
compared with the last published progress (`status.progress`).

- **Before the first step**, the slowest worker counts: when its pod was created, had a node, ran, and its ranks were
  up.
- **While no step was ever reported**, nobody knows whether the ranks load or train. Once they have run for
  UNREPORTED_SECONDS without a report, or have succeeded, this time is `unreported`. With the first step it is `load`.
- **Once steps are finished**, an interval ends at a report. First, the ranks' waits for data, checkpoints and
  evaluation are booked. The rest is recompute up to the furthest step of any attempt, and productive beyond it. An
  interval without a finished step stays open, because a long step can't be distinguished from a hang.
- **A continued attempt** is the same training, so booking continues where it was.
- **A failed attempt** lost the time since its last report, which is recompute: the interrupted step, and the time until
  the failed rank was reported, because Python and torch may take seconds to exit. If the ranks hung, or were known to
  stall (`progress.stall`), it is a stall instead.
- **Without an operator**, nothing is booked until the leader's last report shows the progress in between. If the
  attempt has ended, the time is `unobserved`.

Clocks jump and differ. Every timestamp is limited to the interval that is booked, so nothing is booked twice or
negatively. If the clock is behind the booked time, nothing is booked until it has caught up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, JobStatus, Progress, TimeSpent
from trainmaster_operator.reconciling.observed.situation import RUN_PHASES, Situation
from trainmaster_operator.reconciling.status.progress import UNREPORTED_SECONDS, is_of_current_ranks, reports_nothing
from trainmaster_operator.reconciling.transition import StatusChange, condition
from trainmaster_operator.wire.ranks import RankProgress

# Seconds. If the booked time is further ahead of the clock than this, the clock was wrong at the booking.
LONGEST_WAIT_FOR_THE_CLOCK = 3600.0
_NOT_OF_GOODPUT = ("suspended", "unobserved", "unreported")
# Sections whose time has a category of the same name, used if the ranks don't report a counter for the section.
_SECTIONS = ("checkpoint", "evaluate", "finish")
_WAITS = ("data", "checkpoint", "evaluate")


def book_time(before: Situation, after: JobStatus) -> JobStatus:
    """Returns the new status, in which the time since the old status is booked.

    `before` contains the observations of the pass and the old status. `after` is the status after the pass, with the
    newest progress.
    """
    start = _milliseconds(to_seconds(after.start_time))
    if start is None:
        return after
    books = _Books.open(before.status, start)
    end = _milliseconds(to_seconds(after.completion_time) or to_seconds(to_text(before.now))) or start
    if end < books.cursor:
        books.turn_back(start, end)
    else:
        _book(books, before, after, end)
    books.settle(before, after)
    return books.close(after)


def goodput(time: TimeSpent) -> float | None:
    """Returns the share of the booked time that new steps took. Suspended and unknown time is excluded."""
    active = sum(getattr(time, name) or 0.0 for name in TIME_CATEGORIES if name not in _NOT_OF_GOODPUT)
    return round((time.productive or 0.0) / active, 3) if active > 0 else None


@dataclass
class _Books:
    """The sums in milliseconds up to the time `cursor`. They only grow, except in `turn_back`."""

    cursor: int
    sums: dict[str, int]
    # The furthest step of any attempt.
    furthest: int | None
    # From the attempt's last booked report: the step, the section and the booked waits in seconds.
    step: int | None = None
    section: str | None = None
    waits: dict[str, float] = field(default_factory=dict)
    has_report: bool = False

    @classmethod
    def open(cls, status: JobStatus, start: int) -> _Books:
        time, published = status.time_spent or TimeSpent(), status.progress or Progress()
        until = _milliseconds(to_seconds(time.until))
        if until is None:
            time, until = TimeSpent(), start
        sums = {name: _milliseconds(getattr(time, name)) or 0 for name in TIME_CATEGORIES}
        books = cls(until, sums, published.furthest_step)
        if is_of_current_ranks(status, published.attempt):
            books.step, books.section = published.step, published.section
            waits = {name: getattr(published, f"{name}_seconds") for name in _WAITS}
            books.waits = {name: seconds for name, seconds in waits.items() if seconds is not None}
        return books

    def close(self, status: JobStatus) -> JobStatus:
        """Returns the status with the sums and the booked progress."""
        spent = {name: total / 1000 for name, total in self.sums.items() if total}
        # Half a millisecond less, because `to_text` rounds up.
        time = TimeSpent(until=to_text((self.cursor - 0.5) / 1000), **spent)
        progress = status.progress
        if progress is not None and self.has_report:
            waits = {f"{name}_seconds": seconds for name, seconds in self.waits.items()}
            progress = progress.model_copy(update={"furthest_step": self.furthest, **waits})
        if progress is not None:
            ratio = goodput(time) if progress.furthest_step is not None else None
            progress = progress.model_copy(update={"goodput": ratio})
        return StatusChange(time_spent=time, progress=progress).apply(status)

    def book(self, category: str, until: int) -> None:
        """Books everything from the cursor to `until` into a category."""
        if until > self.cursor:
            self.sums[category] += until - self.cursor
            self.cursor = until

    def settle(self, before: Situation, after: JobStatus) -> None:
        """Moves the time before the first step into its category."""
        total = self.sums["load"] + self.sums["unreported"]
        is_unknown = self.furthest is None and reports_nothing(before)
        up = condition(before.status.conditions, "Running")
        if is_unknown and not self.sums["unreported"] and after.phase != "Succeeded":
            runs = before.status.phase == "Running" and up is not None and up.status == "True"
            since = to_seconds(up.last_transition_time) if runs and up is not None else None
            is_unknown = since is not None and before.now - since >= UNREPORTED_SECONDS
        self.sums |= {"load": 0, "unreported": total} if is_unknown else {"load": total, "unreported": 0}

    def turn_back(self, start: int, end: int) -> None:
        """Reduces the sums to the clock's time if the clock is far behind the booked time."""
        if self.cursor - end <= LONGEST_WAIT_FOR_THE_CLOCK * 1000 or end < start:
            return
        share = (end - start) / max(self.cursor - start, 1)
        self.sums = {name: int(total * share) for name, total in self.sums.items()}
        self.cursor = start + sum(self.sums.values())


def _book(books: _Books, before: Situation, after: JobStatus, end: int) -> None:
    match before.status.phase:
        case "Suspending" | "Suspended":
            # A job that a queue's controller has suspended is waiting in that queue.
            suspended = condition(before.status.conditions, "Suspended")
            by_user = suspended is None or suspended.reason == "Suspended"
            books.book("suspended" if by_user else "queue", end)
        case "Restarting" | "Pending" if before.status.scheduling_backoff:
            books.book("queue", end)
        case "Pending" if before.held:
            _until_pods_run(books, before, end, "queue")
            books.book("queue", end)
        case "Restarting":
            _until_pods_run(books, before, end, "restart")
            books.book("restart", end)
        case "Pending" | "Starting" | "Running":
            _attempt(books, before, after, end)
        case _:
            books.book("queue", end)


@dataclass(frozen=True)
class _Latest:
    """The attempt's newest progress: the lowest rank's report, the longest waits of any rank, and the arrival time."""

    first: RankProgress
    waited: dict[str, float]
    at: int


def _attempt(books: _Books, before: Situation, after: JobStatus, end: int) -> None:
    # In a continued attempt the same ranks continue to train.
    continues = after.continues is not None and after.attempt > before.status.attempt
    over = (after.attempt != before.status.attempt and not continues) or after.phase not in RUN_PHASES
    failure = after.failures[0] if over and after.failures else None
    reason = failure.reason if failure is not None and failure.attempt == before.status.attempt else None
    succeeded = over and after.phase == "Succeeded"
    stop = _ended_at(before, end, first=reason is not None) if reason or succeeded else end
    if before.status.phase != "Running":
        first = "queue" if before.status.attempt == 1 else "restart"
        _until_pods_run(books, before, stop, first)
        books.book("rendezvous", min(_latest(_up_at(before, worker) for worker in before.workers), stop))
    latest = _latest_report(before)
    _until_last_report(books, latest, stop)
    if latest is None and over:
        books.book("unobserved", min(_milliseconds(before.observed.since) or 0, stop))
    elif latest is None and not before.has_leaders_reports and books.cursor < (before.observed.since * 1000):
        # The leader may still send a report on the missing progress.
        return
    published = before.status.progress or Progress()
    has_stalled = reason == "Hung" or (published.stall is not None and published.attempt == before.status.attempt)
    if books.step is None:
        books.book("load", min(latest.at, stop) if latest is not None and has_stalled else stop)
    if reason is not None:
        _cut_off(books, latest, stop, has_stalled=has_stalled)
    elif succeeded:
        _last_steps(books, latest, stop)
    elif over and books.step is not None:
        # In a planned stop, the ranks finish their step and save.
        books.book("recompute" if books.step < (books.furthest or 0) else "productive", stop)
    if over:
        books.book("finish" if succeeded else "restart", end)


def _until_pods_run(books: _Books, before: Situation, stop: int, first: str) -> None:
    """Books the time until every worker's pod was created (category `first`), had a node, and ran."""
    pods = [pod for worker in before.workers if (pod := before.living.get(worker)) is not None]
    if len(pods) < len(before.workers) and (before.held or not before.worker_uids):
        # Pods are missing. If the attempt had all its pods before, the missing ones were just lost.
        books.book(first, stop)
    books.book(first, min(_latest(pod.created_at for pod in pods), stop))
    scheduled = (None if pod.node is None else pod.scheduled_at or pod.created_at for pod in pods)
    books.book("schedule", min(_latest(scheduled), stop))
    started = (pod.started_at or (pod.latest_end.started_at if pod.latest_end else None) for pod in pods)
    books.book("pull", min(_latest(started), stop))


def _until_last_report(books: _Books, latest: _Latest | None, stop: int) -> None:
    """Books the time until the newest report, if a step or an uncounted section has ended since the previous report."""
    if latest is None:
        return
    first = latest.first
    reach = min(latest.at, stop)
    has_new_step = first.step is not None and first.step != books.step
    is_uncounted = books.section in _SECTIONS and books.section not in latest.waited
    if books.section and is_uncounted and books.step is not None and (has_new_step or first.section != books.section):
        books.book(books.section, reach)
    if first.step is not None and has_new_step:
        _steps(books, latest, first.step, reach)
    books.section, books.has_report = first.section, True


def _steps(books: _Books, latest: _Latest, step: int, reach: int) -> None:
    first = latest.first
    waits = {name: max(latest.waited[name] - books.waits.get(name, 0.0), 0.0) for name in latest.waited}
    begun = books.step
    if begun is None:
        began_with = first.start_step if first.start_step is not None else step - 1
        begun = max(min(began_with, step), 0)
        books.book("load", max(reach - _since_the_first_began(first, waits, step - begun, reach), books.cursor))
    for name, seconds in waits.items():
        booked = max(min(_milliseconds(seconds) or 0, reach - books.cursor), 0)
        books.book(name, books.cursor + booked)
        # The rest of the wait doesn't fit into this interval and is booked in the next one.
        books.waits[name] = round(books.waits.get(name, 0.0) + booked / 1000, 3)
    furthest = books.furthest or 0
    # If the step is lower than before, the loop rolled back by itself.
    repeated = min(max(furthest - begun, 0) / (step - begun), 1.0) if step > begun else 1.0
    books.book("recompute", books.cursor + int(max(reach - books.cursor, 0) * repeated))
    books.book("productive", reach)
    books.step, books.furthest = step, max(furthest, step)


def _since_the_first_began(first: RankProgress, waits: dict[str, float], steps: int, reach: int) -> int:
    """Returns the duration of an attempt's first steps and the waits between them [ms], or 0 if unknown."""
    if first.step_seconds is not None:
        # `step_seconds` includes the wait for data.
        beside = waits.get("checkpoint", 0.0) + waits.get("evaluate", 0.0)
        return _milliseconds(max(first.step_seconds, 0.0) * steps + beside) or 0
    first_done = _milliseconds(first.first_step_at)
    if first_done is None or steps < 2:
        return 0
    # The first step takes longer than the others, so the average of the others is used for it.
    return max(reach - first_done, 0) * steps // (steps - 1)


def _cut_off(books: _Books, latest: _Latest | None, stop: int, *, has_stalled: bool) -> None:
    section = latest.first.section if latest is not None else books.section
    books.book("stall" if has_stalled else section if section in _SECTIONS else "recompute", stop)


def _last_steps(books: _Books, latest: _Latest | None, stop: int) -> None:
    total = latest.first.total_steps if latest is not None else None
    if latest is not None and total is not None and books.step is not None and books.step < total:
        # The last steps weren't reported. The furthest step stays, because a rank may count from 0 or stop early.
        furthest = books.furthest
        _steps(books, latest, total, stop)
        books.furthest = furthest
    books.book("finish", stop)


def _latest_report(before: Situation) -> _Latest | None:
    observed = before.observed
    ranks = {rank: found for by_worker in observed.progress.values() for rank, found in by_worker.items()}
    at = _milliseconds(observed.progress_at)
    if observed.progress_attempt != before.status.attempt or not ranks or at is None:
        return None
    waited: dict[str, float] = {}
    for name in _WAITS:
        of_ranks = (getattr(rank, f"{name}_seconds") for rank in ranks.values())
        longest = max((seconds for seconds in of_ranks if seconds is not None), default=None)
        if longest is not None:
            waited[name] = min(longest, 1e9)
    return _Latest(ranks[min(ranks)], waited, at)


def _ended_at(before: Situation, end: int, *, first: bool) -> int:
    """Returns the attempt's end according to reports: the first end if `first` is set, or else the last."""
    ends = [_milliseconds(report.at) or end for report in before.reports.values() if report.ended]
    return min(max((min if first else max)(ends, default=end), 0), end)


def _up_at(before: Situation, worker: int) -> float | None:
    report = before.reports.get(worker)
    if report is not None and report.state == "Running":
        return report.at
    if worker in before.observed.progress and before.observed.progress_attempt == before.status.attempt:
        return 0.0
    if report is not None and report.ended:
        return report.at
    return 0.0 if worker in before.up else None


def _latest(times: Iterable[float | None]) -> int:
    """Returns the latest of the times in milliseconds, or a time in the far future if any of them is unknown."""
    latest = 0
    for at in times:
        milliseconds = _milliseconds(at)
        if milliseconds is None:
            return 2**62
        latest = max(latest, milliseconds)
    return latest


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None or math.isnan(seconds) else round(min(max(seconds, -1e12), 1e12) * 1000)
