"""The learning rate is a pure function of the number of optimizer updates.

Only the number of updates is stored, so the rates don't depend on resumes or the world size. Steps that GradScaler or
the anomaly check skips don't count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from trainloop.settings import Settings


class ScheduleSettings(Settings):
    """These settings decide how the learning rate changes from step to step."""

    kind: Literal["constant", "linear", "cosine", "cosine_restarts"] = Field(
        "cosine", description="Shape after warmup. cosine_restarts is SGDR (Loshchilov and Hutter 2017)."
    )
    warmup: float = Field(0.05, ge=0, description="Linear warmup: below 1 a share of all updates, from 1 on a number.")
    minimum: float = Field(0.0, ge=0, le=1, description="The lowest rate, as a fraction of the peak.")
    period: int | None = Field(None, gt=0, description="Updates in the first cycle of cosine_restarts.")
    period_factor: float = Field(1.0, ge=1, description="Each cycle is this many times as long as the one before.")
    decay: float = Field(1.0, gt=0, le=1, description="Each cycle's peak is this fraction of the one before.")
    scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="How the peak grows with the batch over reference_batch: linear suits SGD, sqrt suits Adam."
    )
    reference_batch: int | None = Field(None, gt=0, description="The global batch that optimizer.lr was chosen for.")

    @model_validator(mode="after")
    def _complete(self) -> ScheduleSettings:
        if self.kind == "cosine_restarts" and self.period is None:
            raise ValueError("period is missing: kind cosine_restarts needs the number of updates in its first cycle")
        if self.scaling != "none" and self.reference_batch is None:
            raise ValueError(f"reference_batch is missing: scaling {self.scaling} needs the batch that lr was made for")
        return self


@dataclass(frozen=True)
class Schedule:
    """A schedule's `factor(update)` multiplies the lr of every parameter group; updates are numbered from 0."""

    settings: ScheduleSettings
    total: int
    batch: int

    @cached_property
    def peak(self) -> float:
        """Returns the factor from batch scaling."""
        if self.settings.scaling == "none":
            return 1.0
        assert self.settings.reference_batch is not None
        ratio = self.batch / self.settings.reference_batch
        return ratio if self.settings.scaling == "linear" else math.sqrt(ratio)

    @cached_property
    def warmup(self) -> int:
        """Returns the number of warmup updates. If the setting is a fraction other than zero, it is at least one."""
        wanted = self.settings.warmup
        return math.ceil(wanted * self.total) if wanted < 1 else int(wanted)

    def factor(self, update: int) -> float:
        if update < self.warmup:
            return self.peak * (update + 1) / self.warmup
        return self.peak * self._after_warmup(update - self.warmup)

    def _after_warmup(self, update: int) -> float:
        kind, low = self.settings.kind, self.settings.minimum
        if kind == "constant":
            return 1.0
        top, into = 1.0, min(1.0, update / max(1, self.total - self.warmup))
        if kind == "cosine_restarts":
            top, into = self._cycle(update)
        height = 1 - into if kind == "linear" else 0.5 * (1 + math.cos(math.pi * into))
        return low + max(0.0, top - low) * height

    def _cycle(self, update: int) -> tuple[float, float]:
        """Returns the peak of the cycle of `update`, and the progress within that cycle, from 0 to 1."""
        assert self.settings.period is not None
        length, start, top = float(self.settings.period), 0.0, 1.0
        while update >= start + round(length):
            start += round(length)
            length *= self.settings.period_factor
            top *= self.settings.decay
        return top, (update - start) / round(length)
