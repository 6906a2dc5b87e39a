"""The weights of a checkpoint are read one tensor at a time, whatever its format.

Files are mapped, so even a model that doesn't fit into memory can be compared and exported. This module needs no
process group, no GPU and no task's code, and never runs code from a file (see `storage.load_file`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from trainloop.checkpoints import storage
from trainloop.checkpoints.export import Layout
from trainloop.checkpoints.storage import CheckpointError
from trainloop.versions.catalog import CommandError
from trainloop.versions.output import size


class Weights(Mapping[str, torch.Tensor]):
    """This mapping contains the model's parameters and buffers by name; each tensor is read on access.

    Raises CheckpointError if the loop didn't write the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The run's state except the content of shards.
        self.state: dict[str, Any] = {}
        loaded = storage.load_file(folder / storage.STATE, mapped=True)
        if not isinstance(loaded, dict):
            raise CheckpointError(f"{folder / storage.STATE} is no state of a run")
        self.state = loaded
        self._shards = Pieces(folder / "shards") if (folder / "shards").is_dir() else None
        model = self.state.get("model")
        if self._shards is None and not isinstance(model, dict):
            raise CheckpointError(f"{folder / storage.STATE} has no weights")
        whole = model if isinstance(model, dict) else {}
        self._model = {str(name): tensor for name, tensor in whole.items() if isinstance(tensor, torch.Tensor)}

    @property
    def sharded(self) -> bool:
        return self._shards is not None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._shards.whole(name) if self._shards else self._model[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards.shapes if self._shards else self._model)

    def __len__(self) -> int:
        return len(self._shards.shapes if self._shards else self._model)

    def shape(self, name: str) -> tuple[torch.dtype, torch.Size]:
        """Returns a tensor's type and shape without reading it."""
        return self._shards.shapes[name] if self._shards else (self._model[name].dtype, self._model[name].shape)


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Pieces:
    """This class reads whole tensors of a sharded checkpoint. It needs neither a model nor the ranks that wrote it."""

    def __init__(self, folder: Path) -> None:
        from trainloop.checkpoints.shards import Shards  # with DTensor, which takes a second

        self.folder, self._shards = folder, Shards(folder)

    @cached_property
    def shapes(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        found = {}
        for name, [first, *_] in self._shards.pieces.items():
            kind, _, parameter = name.partition("/")
            if kind == "model" and "data" in first:
                found[parameter] = (first["data"].dtype, torch.Size(first["shape"]))
        return found

    def whole(self, name: str) -> torch.Tensor:
        try:
            shape = self.shapes[name][1]
            return self._shards.region(f"model/{name}", [0] * len(shape), shape)
        except (RuntimeError, ValueError) as error:  # pieces that don't fit together or exceed the memory
            raise CheckpointError(f"{self.folder} has pieces of {name} that can't be put together: {error}") from error


@dataclass(frozen=True)
class Exported:
    """This is the result of an export."""

    tensors: int
    bytes: int  # size of the whole file
    infinite: list[str]  # tensors with numbers too large for the requested type


def write_weights(weights: Weights, file: Path, dtype: torch.dtype | None, about: dict[str, str]) -> Exported:
    """Writes all weights to `file`, which appears when it is complete.

    If `dtype` is given, floating-point weights are converted to it. `about` is added to the header. Raises CommandError
    if the file can't be written, and CheckpointError if a tensor can't be read.
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
