"""The shares of the global batch follow the ranks' measured speed.

What is measured is the time until a rank's own gradients are ready, without waiting for others. All ranks read it at
the same step.
"""

from __future__ import annotations

from trainloop.distributed.world import World
from trainloop.parallel.balance import Balancer, BalanceSettings
from trainloop.parallel.communication import StepTimes


class SpeedBalancer(Balancer):
    """Measures, and proposes new shares; every rank comes to the same ones."""

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
    """Returns shares in proportion to `speeds` (samples a second), none below `least` of an equal one; they add up to
    1.
    """
    floor = least / len(speeds)
    raised = [max(speed / sum(speeds), floor) for speed in speeds]
    above = sum(share - floor for share in raised)
    spare = 1 - floor * len(speeds)
    return [floor + (share - floor) * (spare / above if above > 0 else 0) for share in raised]
