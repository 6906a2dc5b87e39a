"""If the loss or the gradients jump, all ranks decide together, before the step, to skip the step or to go back.

A step is odd if its loss or gradient norm isn't finite, or has too high a robust z-score compared with recent steps.
This score is the distance from the median in units of the median absolute deviation (Iglewicz and Hoaglin 1993). A
falling loss is never odd. Single odd steps are skipped. After several odd steps in a row, the run returns to a
checkpoint, and skips the data that followed it. Chowdhery et al. 2022, section 5.1, found that from another state, the
same data doesn't cause a spike.

The host computes `Limits` from the accepted steps; `verdict` compares a step's numbers with them.
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

# : `forced` means that an odd step is made because there is no checkpoint to go back to.
Decision = Literal["step", "forced", "skip", "rollback"]

# : The median absolute deviation divided by the standard deviation, for normally distributed numbers.
NORMAL_MAD = 0.6745
# : The minimum deviation as a fraction of the median, because a converged loss may hardly vary.
LEAST_DEVIATION = 0.01
#: Numbers above this aren't finite in single precision.
LARGEST = torch.finfo(torch.float32).max


class AnomalySettings(Settings):
    """These settings decide when a step is odd, and what is done then."""

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
    """A step is odd if its global mean loss or its gradient norm is above the limit."""

    loss: float = LARGEST
    norm: float = LARGEST

    def keep(self, loss: float, norm: float) -> bool:
        """Returns whether the step is made.

        Limits are single-precision numbers, so that comparisons on the host and on the device have the same result.
        """
        return -LARGEST <= loss <= self.loss and norm <= self.norm


class History:
    """The history holds the numbers of the newest accepted steps, both in order of time and sorted by size."""

    def __init__(self, window: int, values: Iterable[float] = ()) -> None:
        self.values = deque(values, window)
        self._ordered = sorted(self.values)

    def add(self, value: float) -> None:
        if len(self.values) == self.values.maxlen:
            del self._ordered[bisect_left(self._ordered, self.values[0])]
        self.values.append(value)
        insort(self._ordered, value)

    def limit(self, threshold: float, ratio: float, number: float = LARGEST) -> float:
        """Returns the largest number that isn't odd.

        A number isn't odd if its z-score is at most `threshold`, or if it is at most `ratio` times the median. If the
        ratio already accepts `number`, the z-score isn't computed.
        """
        count = len(self._ordered)
        median = (self._ordered[(count - 1) // 2] + self._ordered[count // 2]) / 2
        far = (ratio - 1) * abs(median)
        # Usually more than half of the numbers are within this distance. Then the deviation wouldn't raise the limit.
        near = far * NORMAL_MAD / threshold
        inside = bisect_right(self._ordered, median + near) - bisect_left(self._ordered, median - near)
        usual = inside > count // 2 and LEAST_DEVIATION * abs(median) <= near
        if not usual and number > c_float(median + far).value:
            deviation = (self._distance(median, (count + 1) // 2) + self._distance(median, count // 2 + 1)) / 2
            far = max(far, threshold * max(deviation, LEAST_DEVIATION * abs(median)) / NORMAL_MAD)
        return min(c_float(median + far).value, LARGEST)

    def _distance(self, center: float, nearest: int) -> float:
        """Returns the `nearest`-th smallest distance from `center`, by bisection: ten times as fast as sorting.

        The `nearest` numbers closest to `center` are contiguous in the sorted list. They are the first section of that
        length whose farthest number is the rightmost one, or the section before it.
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
    """The detector judges steps one by one. All ranks judge by the same numbers and make the same decision."""

    def __init__(self, settings: AnomalySettings) -> None:
        self.settings, self.odd_in_a_row = settings, 0
        self.reset()

    def limits(self, can_return: bool = True, loss: float = LARGEST, norm: float = LARGEST) -> Limits:
        """Returns the limits for the next step.

        If `loss` and `norm` are already known, the limits need only be valid for these numbers.

        If the run should go back but can't, the limits exclude only numbers that aren't finite. Otherwise the weights
        would stay unchanged, so the next step would be odd too. Clipping bounds the odd step.
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

        `limits` are the limits that were used for this step.
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
        """Returns whether with one more odd step, there would be as many in a row as cause a rollback."""
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
