"""Where loss or gradients jump all ranks decide together, before the step, to leave it out or to go back.

A step is odd when its loss or gradient norm isn't finite, or stands out of the recent ones by a robust z-score: the
distance from the median in units of the median absolute deviation (Iglewicz and Hoaglin 1993). Only upward: a loss
that falls is no anomaly. First an odd step is skipped; after several in a row the run goes back to a checkpoint and
passes over the data since (Chowdhery et al. 2022, section 5.1, found that the same data from another state doesn't
spike).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, Literal

from pydantic import Field

from trainloop.settings import Settings

Decision = Literal["step", "skip", "rollback"]

#: For normally distributed numbers the median absolute deviation is this times the standard deviation.
NORMAL_MAD = 0.6745
#: Below this fraction of the median a deviation counts as none: a converged loss may hardly vary at all.
LEAST_DEVIATION = 0.01


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


class AnomalyDetector:
    """Judges one step after another. Given the same numbers, every rank comes to the same decision."""

    def __init__(self, settings: AnomalySettings) -> None:
        self.settings = settings
        self.odd_in_a_row = 0
        self.rollbacks = 0
        self._losses: deque[float] = deque(maxlen=settings.window)
        self._norms: deque[float] = deque(maxlen=settings.window)

    def judge(self, loss: float, norm: float) -> Decision:
        """Returns what to do with a step of the global mean `loss` and gradient `norm` (before clipping)."""
        odd_loss = self._odd(loss, self._losses, self.settings.loss_ratio)
        odd_norm = self._odd(norm, self._norms, self.settings.norm_ratio)
        if not odd_loss and not odd_norm:
            self._losses.append(loss)
            self._norms.append(norm)
            self.odd_in_a_row = 0
            return "step"
        self.odd_in_a_row += 1
        return "rollback" if self.odd_in_a_row >= self.settings.rollback_after else "skip"

    def _odd(self, value: float, history: deque[float], ratio: float) -> bool:
        if not math.isfinite(value):
            return True
        if len(history) < self.settings.least:
            return False
        median = statistics.median(history)
        far = value - median > (ratio - 1) * abs(median)
        return far and z_score(value, history) > self.settings.threshold

    def reset(self) -> None:
        """Delete the history, because what was usual no longer is."""
        self._losses.clear()
        self._norms.clear()
        self.odd_in_a_row = 0

    def state(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "norms": list(self._norms)}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the history of a checkpoint; how often the run went back is this process's own."""
        self._losses = deque(state["losses"], self.settings.window)
        self._norms = deque(state["norms"], self.settings.window)
        self.odd_in_a_row = 0


def z_score(value: float, history: deque[float]) -> float:
    """Returns how far `value` is above the median of `history`, in standard deviations of a normal distribution."""
    median = statistics.median(history)
    deviation = statistics.median(abs(other - median) for other in history)
    return NORMAL_MAD * (value - median) / max(deviation, LEAST_DEVIATION * abs(median), 1e-300)
