"""Ghost gradients are a fault that a loss curve shows too late or not at all.

A parameter without a gradient is never trained; when only some ranks have one, its average is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field
from torch import nn

from trainloop.distributed.world import World
from trainloop.settings import Settings


class GradientSettings(Settings):
    """These settings say what is checked about gradients and parameters."""

    ghosts: Literal["fail", "warn", "off"] = Field("fail", description="When step 1 gave a parameter no gradient.")
    checksum_every: int | None = Field(1000, gt=0, description="Steps between comparisons of parameters; null never.")


@contextmanager
def recording(model: nn.Module) -> Iterator[set[str]]:
    """Yields the names of parameters that get a gradient in the body, filled when the body ends.

    Gradients themselves don't show it: under DDP an unused parameter has one too, all zeros.
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
    """Returns the modules that FSDP2 shards, by name; they are known by their method, because importing FSDP2 takes a
    second.
    """
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "unshard")]


def accumulating(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields the parameters, by name, that the backward pass adds gradients to: FSDP2's whole ones, not its shards."""
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
    """Returns a sentence about trainable parameters without a gradient, the same on every rank; None when there are
    none.
    """
    own = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name not in reached]
    missing = world.gather(own)
    if not any(missing):
        return None
    from trainloop.optimization.ghosts import sentence  # imported where there may be some

    return sentence(missing, sharded=bool(_sharded(model)))
