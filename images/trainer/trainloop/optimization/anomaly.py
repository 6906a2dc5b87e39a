"""If loss or gradients jump, all ranks decide together, before the step, to skip it or to go back.

A step is odd when its loss or gradient norm isn't finite, or exceeds the recent ones by a robust z-score: the distance
from the median in units of the median absolute deviation (Iglewicz and Hoaglin 1993). A loss that falls is no anomaly.
First an odd step is skipped; after several in a row the run goes back to a checkpoint and passes over the data since
(Chowdhery et al. 2022, section 5.1, found that the same data from another state doesn't spike).

The host turns the accepted steps into `Limits`, two numbers that a step is compared with (`verdict`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from ctypes import c_float
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field

from trainloop.settings import Settings

#: `forced` is an odd step that is made because no checkpoint exists to go back to.
Decision = Literal["step", "forced", "skip", "rollback"]

#: For normally distributed numbers the median absolute deviation is this times the standard deviation.
NORMAL_MAD = 0.6745
#: A deviation below this fraction of the median counts as none, because a converged loss may hardly vary.
LEAST_DEVIATION = 0.01
#: Numbers above this aren't finite in single precision.
LARGEST = torch.finfo(torch.float32).max


class AnomalySettings(Settings):
    """These settings say when a step is odd, and what follows."""

    enabled: bool = Field(True, description="Judge every step by loss and gradient norm before it is made.")
    threshold: float = Field(8.0, gt=0, description="Robust z-score of an odd step. At 3.0 one healthy step in 300 is.")
    loss_ratio: float = Field(1.5, ge=1, description="An odd loss is also this many times the median of the window.")
    norm_ratio: float = Field(5.0, ge=1, description="The same for a gradient norm; what is less, clipping deals with.")
    window: int = Field(128, ge=8, description="Accepted steps that the next one is compared with.")
    least: int = Field(64, ge=4, description="Accepted steps before any is judged by its z-score.")
    rollback_after: int = Field(3, ge=1, description="Odd steps in a row before the run goes back to a checkpoint.")
    rollbacks: int = Field(2, ge=0, description="Times to go back before the run fails as diverged (exit code 70).")


@dataclass(frozen=True)
class Limits:
    """A step with a global mean loss or a gradient norm above its limit is odd."""

    loss: float = LARGEST
    norm: float = LARGEST

    def keep(self, loss: float, norm: float) -> bool:
        """Returns whether the step is made.

        Limits are single-precision numbers, which compare the same on host and device.
        """
        return -LARGEST <= loss <= self.loss and norm <= self.norm


class History:
    """The history holds the numbers of the newest accepted steps, sorted by time and by size."""

    def __init__(self, window: int, values: Iterable[float] = ()) -> None:
        self.values = deque(values, window)
        self._ordered = sorted(self.values)

    def add(self, value: float) -> None:
        if len(self.values) == self.values.maxlen:
            del self._ordered[bisect_left(self._ordered, self.values[0])]
        self.values.append(value)
        insort(self._ordered, value)

    def limit(self, threshold: float, ratio: float, number: float = LARGEST) -> float:
        """Returns the largest number that doesn't stand out.

        Its z-score is at most `threshold`, or it is at most `ratio` times the median. The ratio alone is used if it
        suffices for `number`.
        """
        count = len(self._ordered)
        median = (self._ordered[(count - 1) // 2] + self._ordered[count // 2]) / 2
        far = (ratio - 1) * abs(median)
        # In the usual case more than half of the numbers are as near as this. The deviation then gives no larger limit.
        near = far * NORMAL_MAD / threshold
        inside = bisect_right(self._ordered, median + near) - bisect_left(self._ordered, median - near)
        usual = inside > count // 2 and LEAST_DEVIATION * abs(median) <= near
        if not usual and number > c_float(median + far).value:
            deviation = (self._distance(median, (count + 1) // 2) + self._distance(median, count // 2 + 1)) / 2
            far = max(far, threshold * max(deviation, LEAST_DEVIATION * abs(median)) / NORMAL_MAD)
        return min(c_float(median + far).value, LARGEST)

    def _distance(self, center: float, nearest: int) -> float:
        """Returns the `nearest`-th smallest distance from `center`, by bisection, in a tenth of the time of sorting.

        The nearest numbers are contiguous: the first run of that many whose far end is no longer the left one, or the
        run before it.
        """
        ordered, low, high = self._ordered, 0, len(self._ordered) - nearest
        while low < high:
            row = (low + high) // 2
            if ordered[row + nearest - 1] - center < center - ordered[row]:
                low = row + 1
            else:
                high = row
        rows = (max(0, low - 1), low)
        return min(max(ordered[row + nearest - 1] - center, center - ordered[row]) for row in rows)


class AnomalyDetector:
    """The detector judges steps one by one. Given the same numbers, every rank decides the same."""

    def __init__(self, settings: AnomalySettings) -> None:
        self.settings, self.odd_in_a_row = settings, 0
        self.reset()

    def limits(self, can_return: bool = True, loss: float = LARGEST, norm: float = LARGEST) -> Limits:
        """Returns the limits for the next step.

        If its numbers are already known, the limits need only be valid for them.

        If the run would go back and can't, the limits only exclude numbers that aren't finite: skipping leaves the
        weights unchanged, so the next step would be odd too, and clipping bounds this one.
        """
        settings = self.settings
        if len(self._losses.values) < settings.least or (self._is_last() and not can_return) or not settings.enabled:
            return Limits()
        return Limits(
            self._losses.limit(settings.threshold, settings.loss_ratio, loss),
            self._norms.limit(settings.threshold, settings.norm_ratio, norm),
        )

    def judge(self, loss: float, norm: float, limits: Limits) -> Decision:
        """Returns the decision on a step from the global mean `loss` and the gradient `norm` before clipping.

        With `limits` it returns the decision that was made by these.
        """
        if not limits.keep(loss, norm):
            last = self._is_last()
            self.odd_in_a_row += 1
            return "rollback" if last else "skip"
        if self._is_last() and not self.limits().keep(loss, norm):
            self.reset()
            return "forced"
        self._losses.add(loss)
        self._norms.add(norm)
        self.odd_in_a_row = 0
        return "step"

    def _is_last(self) -> bool:
        """Returns whether one more odd step reaches the maximum."""
        return self.odd_in_a_row + 1 >= self.settings.rollback_after

    def end_row(self) -> None:
        """Resets the count of consecutive odd steps, because the run has gone back."""
        self.odd_in_a_row = 0

    def reset(self) -> None:
        """Deletes the history, because earlier numbers no longer apply."""
        self.load({"losses": [], "norms": []})

    def state(self) -> dict[str, Any]:
        row = self.odd_in_a_row
        return {"losses": list(self._losses.values), "norms": list(self._norms.values), "odd_in_a_row": row}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the history of a checkpoint."""
        self._losses = History(self.settings.window, state["losses"])
        self._norms = History(self.settings.window, state["norms"])
        self.odd_in_a_row = state.get("odd_in_a_row", 0)
