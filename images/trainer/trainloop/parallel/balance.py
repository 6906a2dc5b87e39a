"""The global batch is spread over the ranks in shares, which may follow their speed (see `speed`).

The gradient doesn't change: it is normalised by the global batch, however that is spread.
"""

from __future__ import annotations

from pydantic import Field

from trainloop.distributed.world import World
from trainloop.parallel.communication import StepTimes
from trainloop.settings import Settings


class BalanceSettings(Settings):
    """These settings say when ranks' shares follow their speed."""

    enabled: bool = Field(False, description="Give slow ranks fewer samples. Only for ddp and zero1.")
    warmup: int = Field(20, ge=1, description="Steps before the first measurement counts (compilation, caches).")
    every: int = Field(20, ge=1, description="Steps that are measured before shares change.")
    tolerance: float = Field(0.05, ge=0, description="Changes of a share below this fraction are left alone.")
    least: float = Field(0.1, gt=0, le=1, description="No rank gets less than this fraction of an equal share.")


class Balancer:
    """Leaves the ranks' shares as they are."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights

    def add(self, times: StepTimes, samples: int) -> list[float] | None:
        """Add a step of this rank; returns new weights for all ranks when it is time and they differ enough."""
        return None


def build_balancer(settings: BalanceSettings, world: World) -> Balancer:
    """Returns the balancer of a run, which begins with equal shares."""
    weights = [1.0 / world.size] * world.size
    if not settings.enabled:
        return Balancer(weights)
    from trainloop.parallel.speed import SpeedBalancer

    return SpeedBalancer(settings, world, weights)
