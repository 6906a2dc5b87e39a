"""A model's repeated blocks are what is sharded, compiled, or computed again in the backward pass, as one."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field
from torch import nn

from trainloop.settings import Settings


class BlockSettings(Settings):
    """These settings say how the model's repeated blocks compute what they compute."""

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
    """Returns the repeated blocks, each once, nested ones before those that contain them: the members of ModuleLists
    (transformers' layers, T5's parts of a layer, a stage's blocks), and of ModuleDicts and Sequentials those that have
    layers of their own and a sibling of their class (torchtitan's layers, ResNet's).
    """
    found: dict[nn.Module, None] = {}
    for child in model.children():
        found.update(dict.fromkeys(blocks(child)))
    members = list(model.children()) if isinstance(model, nn.ModuleList) else _alike(model)
    # A container among them is never called itself; what it contains was found above.
    whole = [member for member in members if not isinstance(member, nn.ModuleList | nn.ModuleDict)]
    found.update((member, None) for member in whole if next(member.parameters(), None) is not None)
    return list(found)


def _alike(container: nn.Module) -> list[nn.Module]:
    """Returns the members of a ModuleDict or Sequential that are repeated, single layers excepted."""
    if not isinstance(container, nn.ModuleDict | nn.Sequential):
        return []
    kinds = Counter(type(child) for child in container.children())
    return [child for child in container.children() if kinds[type(child)] > 1 and next(child.children(), None)]


def prepared(settings: BlockSettings, model: nn.Module) -> nn.Module:
    """Returns the model, its blocks changed in place as `settings` say. Raises ConfigError."""
    if settings == BlockSettings():
        return model
    # Imported when used: only some runs ask for it.
    from trainloop.parallel.blockwise import prepare

    return prepare(settings, model)
