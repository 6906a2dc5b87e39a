"""The weights are exported as safetensors, one tensor at a time, at the end of a run or by `trainloop checkpoints`.

The safetensors library's `save_file` isn't used, because it needs all tensors in memory. The format consists of the
header's length (8 bytes, little-endian), a JSON header, and the tensors' bytes without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.storage import CheckpointError

#: safetensors' name for each of torch's types.
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
#: The number of elements that are written or processed at once.
CHUNK = 4 << 20


class Layout:
    """A layout describes a file for named tensors of given types and shapes; `about` is added to the header.

    Raises CheckpointError if the format doesn't support a type.
    """

    def __init__(self, forms: Mapping[str, tuple[torch.dtype, torch.Size]], about: dict[str, str]) -> None:
        self._types = {name: dtype for name, (dtype, _) in forms.items()}
        for name, dtype in self._types.items():
            if dtype not in TYPES:
                raise CheckpointError(f"{name} has type {dtype}, which safetensors hasn't")
        #: The names in the file's order. Large types come first, so every tensor begins at a multiple of its size.
        self.order = sorted(forms, key=lambda name: (-self._types[name].itemsize, name))
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **about}}
        end = 0
        for name in self.order:
            dtype, shape = forms[name]
            begin, end = end, end + shape.numel() * dtype.itemsize
            header[name] = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        #: The size of the whole file.
        self.bytes = len(self._head) + end

    def write(self, file: Path, partial: Path, tensors: Iterable[torch.Tensor]) -> list[str]:
        """Write `tensors`, which must be in the order of `order`, to `partial`; then rename the file to `file`.

        Returns the names of tensors that contain numbers too large for their type in the layout. Raises OSError if
        writing fails.
        """
        infinite = []
        try:
            with partial.open("wb") as stream:
                stream.write(self._head)
                for name, tensor in zip(self.order, tensors, strict=True):
                    overflowed = False
                    for part in chunks(tensor):
                        converted = part.to(self._types[name]).contiguous()
                        stream.write(converted.view(torch.uint8).numpy().data)
                        if converted.dtype != part.dtype:
                            overflowed |= bool((converted.isinf() & ~part.isinf()).any())
                    infinite += [name] if overflowed else []
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(file)
            storage.sync(file.parent)
        finally:
            partial.unlink(missing_ok=True)
        return infinite


def chunks(tensor: torch.Tensor, most: int = CHUNK) -> Iterator[torch.Tensor]:
    """Yields a tensor's numbers in order, in one-dimensional parts of at most `most` elements."""
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), most):
        yield flat[begin : begin + most]


def export_weights(model: nn.Module, checkpoints: Checkpointer, warn: Callable[[str], None]) -> bool:
    """Write the trained weights to `model.safetensors`; returns whether this rank has written them.

    A failure is reported by calling `warn`.

    Every rank takes part in gathering each tensor, but only writers keep the tensor.
    """
    directory = checkpoints.path
    state = model.state_dict()
    # Other values are modules' extra states.
    own = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    try:
        layout = Layout({name: (tensor.dtype, tensor.shape) for name, tensor in own.items()}, {})
    except CheckpointError as error:
        warn(f"model.safetensors can't be written: {error}")
        return False
    gathered = (_whole(own[name]) for name in layout.order)
    try:
        if checkpoints.is_writer:
            layout.write(directory / "model.safetensors", directory / ".model.safetensors", gathered)
            return True
    except OSError as error:
        why = retention.lacking(directory, error, layout.bytes)
        warn(f"model.safetensors can't be written to {directory}: {why}")
    for _ in gathered:
        pass  # a rank that doesn't write, or can't, still takes part in each collective
    return False


def _whole(tensor: Any) -> torch.Tensor:
    """Returns the complete tensor on the host. A DTensor is recognised and gathered without importing its module."""
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.detach().cpu()
