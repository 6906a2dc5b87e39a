"""A model's repeated blocks are what is sharded, compiled or recomputed as one."""

from __future__ import annotations

from collections import Counter

from torch import nn


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
