"""A state is encoded as one JSON text and the raw bytes of its tensors.

Decoding can't run code. Tensors are written from their own memory, and read from the mapped file, so a state is copied
once in each direction. The text has the form of a message (`distributed/serialization`). In it, a tensor is
`{"tensor": [type, shape, offset of its bytes, order of dimensions]}`, and a bytes object is `{"bytes": base64}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from trainloop.distributed.serialization import LENGTH_BYTES, TYPES, from_json, to_json

#: Tensors begin at multiples of this number of bytes, which suits every type and the processor's vectors.
ALIGNMENT = 64


class EncodingError(ValueError):
    """The bytes aren't an encoded state, or the state contains a value that can't be encoded."""


class Encoded:
    """An encoded state consists of a text and the state's own tensors, which are copied only on writing."""

    def __init__(self, state: Any, last: Encoded | None = None) -> None:
        """The text of `last` is reused if its plain values and its tensors' names, types and shapes are the same.

        (1 and 1.0 count as the same.) For a small state, creating the text takes longer than everything else.
        """
        #: The tensors, each with the offset of its bytes from the end of the text.
        self.tensors: list[tuple[torch.Tensor, int]] = []
        self._end = 0
        self._tree = to_json(state, self._leaf)
        self.text: bytes = last.text if last is not None and last._tree == self._tree else self._as_text()
        #: The total number of bytes.
        self.size = len(self.text) + self._end

    def chunks(self) -> Iterator[memoryview]:
        """Yields all bytes in order, with the tensors' current values."""
        yield memoryview(self.text)
        for tensor, _ in self.tensors:
            # View tensors as bytes, because numpy doesn't know all types. A device's tensors are copied to the host
            # here, one at a time.
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            yield flat.numpy().data
            yield memoryview(bytes(-flat.numel() % ALIGNMENT))

    def copy_into(self, memory: torch.Tensor, copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None]) -> None:
        """Copy all bytes into host memory; `copy` is called to copy the tensors."""
        memory[: len(self.text)] = torch.frombuffer(bytearray(self.text), dtype=torch.uint8)
        places = list[torch.Tensor]()
        for tensor, begin in self.tensors:
            place = memory[len(self.text) + begin :][: tensor.numel() * tensor.element_size()]
            # Source and target have the same type and strides, so a device copies bytes and runs no kernel.
            places.append(place.view(tensor.dtype).view(tensor.shape))
        if places:
            copy(places, [tensor.detach() for tensor, _ in self.tensors])

    def _as_text(self) -> bytes:
        text = json.dumps(self._tree).encode()
        text = len(text).to_bytes(LENGTH_BYTES, "big") + text
        return text + b" " * (-len(text) % ALIGNMENT)

    def _leaf(self, value: Any) -> dict[str, Any]:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.Tensor) and not hasattr(value, "device_mesh"):
            begin, size = self._end, value.numel() * value.element_size()
            strides = value.stride()
            order = sorted(range(value.dim()), key=strides.__getitem__, reverse=True)
            # Write the dimensions in their order in memory, which may differ from the tensor's (channels last).
            ordered = value.permute(order)
            self.tensors.append((ordered, begin))
            self._end += size + -size % ALIGNMENT
            return {"tensor": [str(value.dtype), list(ordered.shape), begin, order]}
        raise EncodingError(f"a {type(value).__name__} can't be kept in memory: it is no tensor and no plain value")


def decode(data: torch.Tensor) -> Any:
    """Returns the state encoded in `data`; its tensors are views of `data`. Raises EncodingError if there is none."""
    try:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES].numpy().tobytes(), "big")
        text = json.loads(data[LENGTH_BYTES:end].numpy().tobytes())
        return from_json(text, partial(_leaf, data[end + -end % ALIGNMENT :]))
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError, RecursionError) as error:
        raise EncodingError(f"it is no state of a run: {str(error)[:200]}") from None


def _leaf(data: torch.Tensor, kind: str, content: Any) -> Any:
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tensor":
        name, shape, begin, order = content
        dtype = TYPES[name]
        size = dtype.itemsize
        for length in shape:
            size *= length
        if begin < 0 or begin + size > data.numel():
            raise ValueError("a tensor lies beyond its end")
        order = list(order)
        return data[begin : begin + size].view(dtype).reshape(shape).permute(sorted(range(len(order)), key=order.index))
    raise ValueError(f"{kind!r} is not a kind of value")
