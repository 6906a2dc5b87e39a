"""The ranks are laid out as replicas x shards x tensor: neighbours share each layer, and have the same data; around
them are the ranks of a replica, which have the whole state together. Imported by runs that say how.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trainloop.distributed.world import World
from trainloop.errors import ConfigError
from trainloop.parallel.strategies import ParallelSettings


def divided(world: World, settings: ParallelSettings) -> World:
    """Returns the world of a layout. Raises ConfigError for one that the ranks can't have."""
    tensor, data, parts = settings.tensor, settings.data, world.size // settings.tensor
    replicas = data[0] if isinstance(data, tuple) else 1
    if world.size % tensor:
        raise ConfigError(
            f"parallel.tensor is {tensor}, which doesn't divide the {world.size} rank(s): set one that does"
        )
    if data is not None and math.prod(data if isinstance(data, tuple) else [data]) != parts:
        raise ConfigError(
            f"parallel.data is {_shown(data)}, but {world.size} rank(s) by parallel.tensor {tensor} are {parts}: "
            "set it to that, or leave it out, so that the number of ranks may change"
        )
    return replace(world, tensor=tensor, replicas=replicas)


def _shown(data: int | tuple[int, int]) -> str:
    return str(list(data) if isinstance(data, tuple) else data)
