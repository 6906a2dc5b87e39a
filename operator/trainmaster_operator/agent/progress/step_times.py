"""A rank that says its steps, and never how long one takes, has that derived from when its steps came. Pure.

Steps are counted over intervals of INTERVAL_SECONDS, or of one step where that takes longer, and the median of the last
INTERVALS of them counts. So an evaluation or a checkpoint, which makes one interval long, changes nothing, and a speed
that changes is seen within half a minute, or four steps. Between intervals the last figure stays: it says how fast the
rank trains, not whether it does.

What precedes the first step isn't counted: it is setup, and a rank that reports 0 first may then go on from the step of
its checkpoint.
"""

from __future__ import annotations

from collections import deque
from typing import Optional

from trainmaster_operator.wire.ranks import RankProgress

INTERVAL_SECONDS = 5.0
"""Steps are seen up to 0.25 s late (`hang/observation`), which is a twentieth of this."""
INTERVALS = 7


class StepTimes:
    """StepTimes has the seconds that a step of one rank takes, in one attempt."""

    def __init__(self) -> None:
        self._says_them = False
        """Whether the rank has ever said them itself: then nothing is derived."""
        self._last: Optional[int] = None
        self._began: Optional[tuple[int, float]] = None
        """The step at which the present interval began, and when that was."""
        self._at = 0.0
        """When the newest step came."""
        self._intervals: deque[float] = deque(maxlen=INTERVALS)

    def complete(self, progress: RankProgress, now: float) -> RankProgress:
        """Returns the progress with its `step_seconds`, where they are derived. `now`: on the monotonic clock."""
        if progress.step_seconds is not None:
            self._says_them = True
        if self._says_them or progress.step is None:
            return progress
        if progress.step != self._last:
            self._observe(progress.step, progress.start_step or 0, now)
        if not self._intervals:
            return progress
        # The median; of an even number the lower one, because what isn't training only makes intervals longer. It isn't
        # taken from `statistics`, whose import costs 15 ms of an agent's start.
        return progress._replace(step_seconds=sorted(self._intervals)[(len(self._intervals) - 1) // 2])

    def estimate(self, progress: RankProgress) -> Optional[float]:
        """Returns what a step takes, also where that isn't worth reporting yet; None where nothing is known of it."""
        if progress.step_seconds is not None or self._began is None or self._last is None:
            return progress.step_seconds
        step, since = self._began
        return (self._at - since) / (self._last - step) if self._last > step else None

    def _observe(self, step: int, start: int, now: float) -> None:
        if self._last is not None and step < self._last:
            # Another training in the same process, or a loop that rolled back.
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
