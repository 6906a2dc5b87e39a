"""Parameters that should be equal on all ranks and aren't (a flipped bit, a racing kernel, a rank that skipped a step)
make every later step wrong; imported when they are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn

from trainloop.distributed.world import World
from trainloop.errors import Diverged, listed

#: Numbers that a checksum adds at once: bounds the memory that it needs.
CHUNK = 1 << 22


def checksums(parameters: Iterable[torch.Tensor]) -> list[int]:
    """Returns an exact number for each tensor: the sum of its bits as integers, which no order of adding changes."""
    sums = []
    for tensor in parameters:
        bits = tensor.detach().contiguous().view(-1).view(torch.int16)
        total = 0
        for start in range(0, bits.numel(), CHUNK):
            chunk = bits[start : start + CHUNK].to(torch.int64)
            # Weighted by position, so that two exchanged values are seen too; int64 wraps, which is still exact.
            position = torch.arange(start + 1, start + 1 + chunk.numel(), device=chunk.device)
            total += int((chunk * position).sum())
        sums.append(total)
    return sums


def compare_parameters(model: nn.Module, world: World) -> None:
    """Raise Diverged on every rank, naming rank and parameter, when parameters aren't equal to the bit on all ranks."""
    names = [name for name, _ in model.named_parameters()]
    gathered = world.gather(tuple(checksums(parameter for _, parameter in model.named_parameters())))
    common, _ = Counter(gathered).most_common(1)[0]
    odd = [rank for rank, sums in enumerate(gathered) if sums != common]
    if odd:
        first = next(name for name, *sums in zip(names, common, gathered[odd[0]], strict=True) if sums[0] != sums[1])
        raise Diverged(
            f"parameters differ between ranks: rank {listed(odd)} differs, first in {first}. "
            "The hardware of that rank may be faulty; training goes on from the last checkpoint after a restart"
        )
