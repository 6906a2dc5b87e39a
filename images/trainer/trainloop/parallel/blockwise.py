"""A model's repeated blocks are recomputed in the backward pass, and compiled, in place: parameters keep their names,
so a checkpoint is the same with and without.

The order is torchtitan's: activation checkpointing within the compiled block, and sharding (FSDP2) around both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainloop.errors import ConfigError
from trainloop.parallel.blocks import BlockSettings, blocks


def prepare(settings: BlockSettings, model: nn.Module) -> nn.Module:
    """Returns the model, its outermost blocks changed in place as `settings` say. Raises ConfigError."""
    found = blocks(model)
    inner = {module for block in found for module in block.modules() if module is not block}
    outermost = [block for block in found if block not in inner]
    if settings.activation_checkpointing == "full":
        if not outermost:
            raise ConfigError(
                "blocks.activation_checkpointing is 'full', but the model has no repeated blocks: use none"
            )
        for block in outermost:
            # A partial with a bound method is copied with its block (an average of weights does it); a closure isn't.
            block.forward = partial(_recomputed, block.forward)
    if settings.compile:
        backend = _backend(settings.compile)
        for block in outermost or [model]:
            block.compile(backend=backend)
    return model


def _recomputed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Returns what `forward` does. It is a function of this module because the compiler passes over torch's own."""
    return checkpoint(forward, *inputs, use_reentrant=False, **named)


def _backend(compiler: bool | str) -> str:
    """Returns the backend's name. Raises ConfigError when it can't be used here."""
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
