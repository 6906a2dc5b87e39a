"""What a compressor leaves out of one step comes with the next one (error feedback).

That memory is each rank's own, and is in the checkpoint. It is kept by parameter, because DDP puts parameters into
other buckets after the first backward, and a resumed run may have buckets of another size. After every step

    sum of the true mean gradients - sum of what steps were made with = mean of ranks' `left` + sum of their `mean_left`
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import GradBucket

from trainloop.parallel.compression import Memory

KINDS = ("left", "mean_left", "factor")


class Feedback:
    """Adds what was left out before to a step's gradients, and takes back what a step has left out for nothing."""

    def __init__(self, names: dict[torch.Tensor, str], memory: Memory) -> None:
        self._names, self._memory = names, memory
        self._before: Memory = {}

    def begin(self) -> None:
        """Begin a step."""
        self._before = dict(self._memory)

    def add(self, bucket: GradBucket, names: list[str], keeps_means: bool) -> None:
        """Add what was left out of a bucket's gradients. With `keeps_means` the compressor knows what to do with what
        was left out of means; else it goes into this rank's part of the mean, multiplied by the number of ranks.
        """
        weights = {"left": 1} if keeps_means else {"left": 1, "mean_left": dist.get_world_size()}
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            for kind, weight in weights.items():
                if (kept := self._memory.pop(f"{name}.{kind}", None)) is not None:
                    gradient.add_(kept.to(gradient.device), alpha=weight)

    def end(self) -> None:
        """End a step's backward."""
        if not dist.is_initialized():
            # One rank alone has no DDP whose hook adds what more ranks have left.
            for parameter, name in self._names.items():
                if parameter.grad is not None and f"{name}.left" in self._memory:
                    parameter.grad += self._memory.pop(f"{name}.left").to(parameter.device)
        # DDP drops what was sent for a parameter that no rank has used.
        self._take_back({name for parameter, name in self._names.items() if parameter.grad is None})

    def skip(self) -> None:
        """Take back all that this step left out."""
        self._take_back(set(self._names.values()))

    def _take_back(self, names: set[str]) -> None:
        for key in {*self._memory, *self._before}:
            if key.rpartition(".")[0] in names:
                self._memory.pop(key, None)
                if key in self._before:
                    self._memory[key] = self._before[key]

    def load(self, memories: list[Memory], rank: int) -> bool:
        """Load the memories of all ranks of a checkpoint; returns whether something fits no parameter and is dropped.

        An older version kept it by bucket: whose it was is no longer known.
        """
        size = dist.get_world_size() if dist.is_initialized() else 1
        memory = memories[rank] if len(memories) == size else carried_over(memories)
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        for key, kept in memory.items():
            name, _, kind = key.rpartition(".")
            if name in shapes and kind in KINDS and (kind == "factor" or kept.shape == shapes[name]):
                self._memory[key] = kept
        return len(self._memory) < len(memory)


def carried_over(memories: list[Memory]) -> Memory:
    """Returns a rank's memory when a checkpoint of `len(memories)` ranks is loaded by another number of ranks.

    What was left out of the mean gradient is the mean of what each rank left out of its own, plus what ranks left out
    of the means that they sent. Every new rank starts with that, so nothing is lost.
    """
    carried: Memory = {}
    for memory in memories:
        for key, tensor in memory.items():
            name, _, kind = key.rpartition(".")
            new = f"{name}.left" if kind == "mean_left" else key
            carried[new] = carried.get(new, 0) + (tensor if kind == "mean_left" else tensor / len(memories))
    return carried
