"""This module detects ghost gradients and unequal parameters, which a loss curve shows too late or not at all.

A ghost is a parameter without a gradient. If no rank has a gradient for the parameter, it is never trained; if only
some ranks have one, the average is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from trainloop.distributed.world import World
from trainloop.errors import Diverged, listed
from trainloop.settings import Settings


class GradientSettings(Settings):
    """These settings choose the checks of gradients and parameters."""

    ghosts: Literal["fail", "warn", "off"] = Field("fail", description="When step 1 gave a parameter no gradient.")
    checksum_every: int | None = Field(1000, gt=0, description="Steps between comparisons of parameters; null never.")


@contextmanager
def recording(model: nn.Module) -> Iterator[set[str]]:
    """Yields a set that collects the names of the parameters that get a gradient in the `with` body.

    The gradients themselves don't show this, because DDP gives an unused parameter a gradient of zeros.
    """
    reached: set[str] = set()
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))  # type: ignore[no-untyped-call]
        for name, parameter in accumulating(model)
        if parameter.requires_grad
    ]
    try:
        yield reached
    finally:
        for hook in hooks:
            hook.remove()


def _sharded(model: nn.Module) -> list[tuple[str, Any]]:
    """Returns the names and the modules that FSDP2 shards.

    They are recognised by their method `unshard`, because importing FSDP2 to check their class takes a second.
    """
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "unshard")]


def accumulating(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields the parameters to which the backward pass adds gradients, with their names.

    With FSDP2 these are the whole parameters, not the shards.
    """
    units = _sharded(model)
    if not units:
        yield from model.named_parameters()
    for prefix, unit in units:
        unit.reshard()  # the root stays whole after a forward pass without a backward pass
        shards = set(unit.parameters())
        unit.unshard()
        for name, parameter in unit.named_parameters(prefix):
            if parameter not in shards:
                yield name, parameter
        unit.reshard()


def ghosts(model: nn.Module, reached: set[str], world: World) -> str | None:
    """Returns a message about trainable parameters without a gradient, or None. It is the same on every rank."""
    own = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name not in reached]
    missing = world.gather(own)
    if not any(missing):
        return None
    from trainloop.parallel.gradients import sentence  # imported only if needed

    return sentence(missing, sharded=bool(_sharded(model)))


def sentence(missing: list[list[str]], *, sharded: bool) -> str | None:
    """Returns a message about the parameters that have no gradient; `missing` lists their names for each rank.

    If the model is sharded and each parameter has a gradient on some rank, returns None, because FSDP2 then uses zeros
    on the other ranks.
    """
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for names in missing for name in names):
        by_ranks.setdefault(tuple(rank for rank, names in enumerate(missing) if name in names), []).append(name)
    if sharded:
        by_ranks = {ranks: names for ranks, names in by_ranks.items() if len(ranks) == len(missing)}
    if not by_ranks:
        return None
    parts = [
        f"no rank has a gradient for {listed(names)}"
        if len(ranks) == len(missing)
        else f"rank {listed(ranks)} has none for {listed(names)}, the others do"
        for ranks, names in by_ranks.items()
    ]
    return (
        f"parameters without gradient after the first step: {'; '.join(parts[:8])}. Use them in the loss, freeze them "
        "(requires_grad=False), or set parallel.find_unused_parameters where it depends on the batch"
    )


#: A checksum is computed in chunks of this many numbers, to limit its memory.
CHUNK = 1 << 22


def checksums(parameters: Iterable[torch.Tensor]) -> list[int]:
    """Returns an exact checksum of each tensor, which doesn't depend on the order of summation.

    Its bits are read as 16-bit integers, and summed, each multiplied by its position.
    """
    sums = []
    for tensor in parameters:
        bits = tensor.detach().contiguous().view(-1).view(torch.int16)
        total = 0
        for start in range(0, bits.numel(), CHUNK):
            chunk = bits[start : start + CHUNK].to(torch.int64)
            # The position is a weight, so that two exchanged values are detected too. If int64 overflows, it wraps
            # around, which is still exact.
            position = torch.arange(start + 1, start + 1 + chunk.numel(), device=chunk.device)
            total += int((chunk * position).sum())
        sums.append(total)
    return sums


def compare_parameters(model: nn.Module, world: World) -> None:
    """Raises Diverged on every rank if parameters aren't the same on all ranks, bit for bit.

    The message names the ranks and the first parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    gathered = world.gather(tuple(checksums(parameter for _, parameter in model.named_parameters())))
    common, _ = Counter(gathered).most_common(1)[0]
    odd = [rank for rank, sums in enumerate(gathered) if sums != common]
    if odd:
        first = next(name for name, *sums in zip(names, common, gathered[odd[0]], strict=True) if sums[0] != sums[1])
        raise Diverged(
            f"parameters differ between ranks: rank {listed(odd)} differs, first in {first}. "
            "The hardware of that rank may be faulty; training continues from the last checkpoint after a restart"
        )
