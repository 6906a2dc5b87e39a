"""The model's repeated blocks can be compiled, and computed again in the backward pass (`parallel/blockwise`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from trainloop.settings import Settings


class ModelSettings(Settings):
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


def prepared(settings: ModelSettings, model: nn.Module) -> nn.Module:
    """Returns the model, its blocks changed in place as `settings` say. Raises ConfigError."""
    if settings == ModelSettings():
        return model
    # Imported when used: only some runs ask for it.
    from trainloop.parallel.blockwise import prepare

    return prepare(settings, model)
