"""The weights of a checkpoint are read one tensor at a time, whatever its format.

Files are mapped, so a model that doesn't fit into memory can be compared and exported. Nothing here needs a process
group, a GPU or the task's code, and no code from a file is run (`storage.load_file`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainloop.checkpoints import storage
from trainloop.checkpoints.verification import CheckpointError

if TYPE_CHECKING:
    from trainloop.versions.pieces import Pieces


class Weights(Mapping[str, torch.Tensor]):
    """The model's parameters and buffers by name; a tensor is read when it is asked for.

    Raises CheckpointError where files aren't what the loop writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: All of the run's state but what shards hold.
        self.state: dict[str, Any] = {}
        loaded = storage.load_file(folder / storage.STATE, mapped=True)
        if not isinstance(loaded, dict):
            raise CheckpointError(f"{folder / storage.STATE} is no state of a run")
        self.state = loaded
        self._shards = _pieces(folder / "shards")
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


def _pieces(folder: Path) -> Pieces | None:
    if not folder.is_dir():
        return None
    from trainloop.versions.pieces import Pieces  # with DTensor, which takes a second

    return Pieces(folder)


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
