"""Ghost gradients are a fault that a loss curve shows too late or not at all.

A parameter without a gradient is never trained. If it has a gradient on only some ranks, the average is wrong.
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
    """These settings say what is checked about gradients and parameters."""

    ghosts: Literal["fail", "warn", "off"] = Field("fail", description="When step 1 gave a parameter no gradient.")
    checksum_every: int | None = Field(1000, gt=0, description="Steps between comparisons of parameters; null never.")


@contextmanager
def recording(model: nn.Module) -> Iterator[set[str]]:
    """Yields the set of parameter names that get a gradient in the body, filled when the body ends.

    The gradients alone don't show this, because DDP gives an unused parameter a gradient of zeros.
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
    """Returns the modules that FSDP2 shards, by name.

    They are recognised by their method, because importing FSDP2 takes a second.
    """
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "unshard")]


def accumulating(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields, by name, the parameters to which the backward pass adds gradients: FSDP2's whole ones, not its shards."""
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
    """Returns a message about trainable parameters without a gradient, equal on every rank, or None."""
    own = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name not in reached]
    missing = world.gather(own)
    if not any(missing):
        return None
    from trainloop.parallel.gradients import sentence  # imported only if needed

    return sentence(missing, sharded=bool(_sharded(model)))


def sentence(missing: list[list[str]], *, sharded: bool) -> str | None:
    """Returns a message about the parameters that have no gradient, which `missing` lists for each rank, or None.

    Returns None if that is harmless, because FSDP2 uses zeros for ranks without a gradient.
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


#: A checksum adds this many numbers at once, which bounds its memory.
CHUNK = 1 << 22


def checksums(parameters: Iterable[torch.Tensor]) -> list[int]:
    """Returns an exact number for each tensor: the sum of its bits as integers, which doesn't depend on the order."""
    sums = []
    for tensor in parameters:
        bits = tensor.detach().contiguous().view(-1).view(torch.int16)
        total = 0
        for start in range(0, bits.numel(), CHUNK):
            chunk = bits[start : start + CHUNK].to(torch.int64)
            # Weighted by position, to detect two exchanged values too; int64 wraps, which is still exact.
            position = torch.arange(start + 1, start + 1 + chunk.numel(), device=chunk.device)
            total += int((chunk * position).sum())
        sums.append(total)
    return sums


def compare_parameters(model: nn.Module, world: World) -> None:
    """Raises Diverged on every rank, naming rank and parameter, if parameters aren't equal to the bit on all ranks."""
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
