"""The micro-batches of a step are shared out among the ranks that are present. Pure, but for the random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import nn

from trainloop.recovery import generators


def share(count: int, size: int, present: Sequence[int], rank: int) -> list[int]:
    """Returns which of `count` parts of a step `rank` computes: its own, which are always the same, and of those that
    absent ranks leave, those that are dealt to it. Whoever has fewest gets the next one. Raises ValueError for fewer
    parts than ranks.
    """
    if count < size:
        raise ValueError(f"parts is {count}, which is fewer than the {size} ranks: each needs one in every step")
    shares = {each: list(range(each * count // size, (each + 1) * count // size)) for each in range(size)}
    orphans = [part for each in range(size) if each not in present for part in shares[each]]
    for part in orphans:
        fewest = min(present, key=lambda each: (len(shares[each]), each))
        shares[fewest].append(part)
    return shares[rank]


def seed(base: int, step: int, part: int, device: torch.device) -> None:
    """Seed the generators for one part of one step, so that its random numbers don't depend on who computes it."""
    number = int.from_bytes(hashlib.blake2b(f"{base}/{step}/{part}".encode(), digest_size=8).digest(), "big") >> 1
    generators.seed(number, device)


def passes(model: nn.Module, own: list[int], before: Callable[[int], None]) -> Iterator[int]:
    """Yields a rank's parts of a step; `before` is called with each. The last one's backward reduces the gradients."""
    for part in own:
        last = part == own[-1]
        with nullcontext() if last or not isinstance(model, nn.parallel.DistributedDataParallel) else model.no_sync():
            before(part)
            yield part
