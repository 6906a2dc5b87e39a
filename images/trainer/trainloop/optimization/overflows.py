"""A scale that is too high at first costs a few steps; gradients that overflow at any scale would cost all of them, so
overflows in a row are counted and end the run. Imported by runs in fp16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from trainloop.errors import Diverged


class Overflows:
    """Counts the steps that the scaler leaves out one after the other, at most `most`."""

    def __init__(self, scaler: torch.amp.GradScaler, most: int, warn: Callable[[str], None]) -> None:
        self._scaler, self._most, self._warn, self.in_a_row = scaler, most, warn, 0

    def add(self, loss: float, norm: float, judged: bool) -> bool:
        """Returns whether it is the scaler that leaves a step out: its gradients aren't finite, and the loss is.

        Where steps aren't `judged` by their loss, it is the scaler in any case. Of such steps in a row the fourth is
        warned of, and whenever they have doubled since. Raises Diverged after too many of them.
        """
        overflowed = not math.isfinite(norm) and (math.isfinite(loss) or not judged)
        self.in_a_row = row = self.in_a_row + 1 if overflowed else 0
        if row >= self._most:
            raise Diverged(
                f"fp16's gradients overflowed in {row} steps in a row, the loss scale is down to "
                f"{self._scaler.get_scale():g}: look for numbers that aren't finite in the backward pass, or set "
                "precision.compute to bf16"
            )
        if row >= 4 and row.bit_count() == 1:
            self._warn(
                f"fp16's gradients overflowed in {row} steps in a row; the loss scale is {self._scaler.get_scale():g}"
            )
        return overflowed
