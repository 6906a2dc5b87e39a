"""Whole tensors are put together from what all ranks have written into a sharded checkpoint."""

from __future__ import annotations

from functools import cached_property

import torch

from trainloop.checkpoints.shards import Shards
from trainloop.checkpoints.verification import CheckpointError


class Pieces(Shards):
    """Gives the model's whole tensors, without a model, and without the ranks that wrote them."""

    @cached_property
    def shapes(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        found = {}
        for name, [first, *_] in self._pieces.items():
            kind, _, parameter = name.partition("/")
            if kind == "model" and "data" in first:
                found[parameter] = (first["data"].dtype, torch.Size(first["shape"]))
        return found

    def whole(self, name: str) -> torch.Tensor:
        try:
            shape = self.shapes[name][1]
            return self._region(f"model/{name}", [0] * len(shape), shape)
        except (RuntimeError, ValueError) as error:  # pieces that don't fit together, or more than the memory
            raise CheckpointError(f"{self.folder} has pieces of {name} that can't be put together: {error}") from error
