"""A model's repeated blocks are the units of sharding, compilation and recomputation in the backward pass."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainloop.errors import ConfigError
from trainloop.settings import Settings


class BlockSettings(Settings):
    """These settings decide whether the model's repeated blocks are compiled, and whether they are recomputed."""

    compile: bool | str = Field(
        False,
        description="torch.compile each of the model's repeated blocks, or all of it where it has none; true is the "
        "backend inductor (needs a compiler of C++ in the image), a name another one: aot_eager.",
    )
    activation_checkpointing: Literal["none", "full"] = Field(
        "none",
        description="full: the backward pass computes each repeated block again, and keeps only what goes into it "
        "(Chen et al. 2016): less memory, about a third more time.",
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks, each once; nested blocks precede the block that contains them.

    Blocks are the members of ModuleLists (such as transformers' layers, the parts of T5's layers, or a stage's blocks).
    Members of ModuleDicts and Sequentials are blocks if they contain layers and have a sibling of the same class (such
    as the layers of torchtitan and of ResNet).
    """
    found: dict[nn.Module, None] = {}
    for child in model.children():
        found.update(dict.fromkeys(blocks(child)))
    members = list(model.children()) if isinstance(model, nn.ModuleList) else _alike(model)
    # Exclude containers, because they are never called themselves, and their blocks were found above.
    whole = [member for member in members if not isinstance(member, nn.ModuleList | nn.ModuleDict)]
    found.update((member, None) for member in whole if next(member.parameters(), None) is not None)
    return list(found)


def _alike(container: nn.Module) -> list[nn.Module]:
    """Returns the repeated members of a ModuleDict or Sequential, except single layers."""
    if not isinstance(container, nn.ModuleDict | nn.Sequential):
        return []
    kinds = Counter(type(child) for child in container.children())
    return [child for child in container.children() if kinds[type(child)] > 1 and next(child.children(), None)]


def prepared(settings: BlockSettings, model: nn.Module) -> nn.Module:
    """Returns the model after changing its blocks in place by `settings`. Raises ConfigError if that is impossible."""
    if settings == BlockSettings():
        return model
    # Imported when used, because few runs need it.
    from trainloop.parallel.blocks import prepare

    return prepare(settings, model)


def prepare(settings: BlockSettings, model: nn.Module) -> nn.Module:
    """Changes the model's outermost blocks in place by `settings`. Raises ConfigError if that is impossible."""
    found = blocks(model)
    inner = {module for block in found for module in block.modules() if module is not block}
    outermost = [block for block in found if block not in inner]
    if settings.activation_checkpointing == "full":
        if not outermost:
            raise ConfigError(
                "blocks.activation_checkpointing is 'full', but the model has no repeated blocks: use none"
            )
        for block in outermost:
            # Averaging of weights copies the blocks. A partial with a bound method is copied with its block, but a
            # closure isn't.
            block.forward = partial(_recomputed, block.forward)
    if settings.compile:
        backend = _backend(settings.compile)
        for block in outermost or [model]:
            block.compile(backend=backend)
    return model


def _recomputed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Returns the result of `forward`. This function is in this module because the compiler skips torch's own."""
    return checkpoint(forward, *inputs, use_reentrant=False, **named)


def _backend(compiler: bool | str) -> str:
    """Returns the backend's name. Raises ConfigError if it can't be used here."""
    name = compiler if isinstance(compiler, str) else "inductor"
    if name not in torch._dynamo.list_backends(exclude_tags=()):
        usual = ", ".join(torch._dynamo.list_backends())
        raise ConfigError(
            f"blocks.compile is {name!r}: it must be true, false or one of torch's backends ({usual}, ...)"
        )
    cxx = os.environ.get("CXX", "g++")
    if name == "inductor" and shutil.which(cxx) is None:
        raise ConfigError(
            f"blocks.compile needs a compiler of C++ for inductor, and {cxx} isn't there: install one in the image, "
            "name it in CXX, or use another backend (aot_eager needs none)"
        )
    return name
