"""The global batch is divided among the ranks in shares, which may follow their speed.

The shares don't change the gradient, because it is normalised by the global batch.
"""

from __future__ import annotations

from pydantic import Field

from trainloop.distributed.world import World
from trainloop.parallel.communication import StepTimes
from trainloop.settings import Settings


class BalanceSettings(Settings):
    """These settings decide whether and how ranks' shares follow their speed."""

    enabled: bool = Field(False, description="Give slow ranks fewer samples. Only for ddp and zero1.")
    warmup: int = Field(20, ge=1, description="Steps before the first measurement counts (compilation, caches).")
    every: int = Field(20, ge=1, description="Steps that are measured before shares change.")
    tolerance: float = Field(0.05, ge=0, description="Changes of a share below this fraction are left alone.")
    least: float = Field(0.1, gt=0, le=1, description="No rank gets less than this fraction of an equal share.")


class Balancer:
    """This balancer doesn't change the ranks' shares."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights

    def add(self, times: StepTimes, samples: int) -> list[float] | None:
        """Records a step of this rank; returns new weights for all ranks if they are due and differ enough, or None."""
        return None


def build_balancer(settings: BalanceSettings, world: World) -> Balancer:
    """Returns the balancer of a run, which begins with equal shares."""
    weights = [1.0 / world.size] * world.size
    if not settings.enabled:
        return Balancer(weights)
    from trainloop.parallel.balance import SpeedBalancer

    return SpeedBalancer(settings, world, weights)


class SpeedBalancer(Balancer):
    """This balancer measures the ranks' speed and computes new shares. All ranks get the same list of shares."""

    def __init__(self, settings: BalanceSettings, world: World, weights: list[float]) -> None:
        super().__init__(weights)
        self.settings, self._world = settings, world
        self._steps: list[StepTimes] = []
        self._samples = self._seen = 0

    def add(self, times: StepTimes, samples: int) -> list[float] | None:
        self._seen += 1
        if self._seen <= self.settings.warmup:
            return None
        self._steps.append(times)
        self._samples += samples
        if len(self._steps) < self.settings.every:
            return None
        seconds = sum(step.computed for step in self._steps)
        speeds = self._world.gather(self._samples / max(seconds, 1e-9))
        self._steps, self._samples = [], 0
        proposed = shares(speeds, self.settings.least)
        change = max(abs(new - old) / old for new, old in zip(proposed, self.weights, strict=True))
        if change <= self.settings.tolerance:
            return None
        self.weights = proposed
        return proposed


def shares(speeds: list[float], least: float) -> list[float]:
    """Returns shares in proportion to `speeds` (samples/s), whose sum is 1; none is below `least` of an equal share."""
    floor = least / len(speeds)
    raised = [max(speed / sum(speeds), floor) for speed in speeds]
    above = sum(share - floor for share in raised)
    spare = 1 - floor * len(speeds)
    return [floor + (share - floor) * (spare / above if above > 0 else 0) for share in raised]
