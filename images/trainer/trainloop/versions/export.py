"""A checkpoint's weights are written as safetensors, of a full or a sharded one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from trainloop.checkpoints.export import Layout
from trainloop.checkpoints.verification import CheckpointError
from trainloop.versions.catalog import CommandError
from trainloop.versions.output import size
from trainloop.versions.tensors import Weights


@dataclass(frozen=True)
class Exported:
    """What a file has got."""

    tensors: int
    bytes: int  # of the whole file
    infinite: list[str]  # tensors with numbers that are too large for the type asked for


def write_weights(weights: Weights, file: Path, dtype: torch.dtype | None, about: dict[str, str]) -> Exported:
    """Write all weights to `file`, which appears when it is complete; floating-point ones as `dtype`, where one is
    given. `about` is text for the header.

    Raises CommandError where the file can't be written, CheckpointError where a tensor can't be read.
    """
    forms = {name: weights.shape(name) for name in weights}
    if dtype is not None:
        forms = {name: (dtype if own.is_floating_point else own, shape) for name, (own, shape) in forms.items()}
    layout = Layout(forms, about)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        infinite = layout.write(file, partial, (weights[name] for name in layout.order))
    except OSError as error:
        raise CommandError(f"{file} can't be written ({size(layout.bytes)} are needed): {error.strerror}") from error
    except (RuntimeError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"a tensor of {weights.folder} can't be exported: {first}") from error
    return Exported(len(layout.order), layout.bytes, infinite)
