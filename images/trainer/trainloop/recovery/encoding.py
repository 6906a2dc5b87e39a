"""A state is encoded as one JSON text and the raw bytes of its tensors.

Nothing in it can run code where it is read, tensors are written from where they lie, and read where the file is mapped,
so that a state is copied once each way. In the text an object with one key stands for what JSON doesn't have:
`{"tensor": [type, shape, where its bytes begin]}`, `{"tuple": […]}`, `{"dict": [[key, value], …]}` (keys of any kind)
and `{"bytes": base64}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch

#: Tensors begin at multiples of this, which suits every type and the processor's vectors.
ALIGNMENT = 64
_LENGTH_BYTES = 8
_TYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_PLAIN = (bool, int, float, str)


class EncodingError(ValueError):
    """The bytes are no encoded state, or the state has something that can't be encoded."""


class Encoded:
    """An encoded state is a text and tensors on the host, which are views of the state's own where that is possible."""

    def __init__(self, state: Any, last: Encoded | None = None) -> None:
        """Where `last` has tensors of the same names, types and shapes, and equal plain values (1 is equal to 1.0),
        its text is used again, because making it takes longer than the rest of a small state.
        """
        self._tensors: list[torch.Tensor] = []
        self._views: list[memoryview] | None = None
        self._end = 0
        self._tree = self._plain(state)
        self._text: bytes = last._text if last is not None and last._tree == self._tree else self._as_text()
        #: Bytes of all of it.
        self.size = len(self._text) + self._end

    def chunks(self) -> Iterable[memoryview]:
        """Returns all bytes, in order, as they are now."""
        if self._views is None and all(map(_is_bytes, self._tensors)):
            # Kept, because making views of a small state takes longer than copying it.
            self._views = list(self._chunks())
        return self._views or self._chunks()

    def _chunks(self) -> Iterator[memoryview]:
        yield memoryview(self._text)
        for tensor in self._tensors:
            # Bytes, because numpy doesn't know all types; a device's tensor comes to the host here, one at a time.
            flat = tensor if _is_bytes(tensor) else tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            yield flat.numpy().data
            yield memoryview(bytes(-flat.numel() % ALIGNMENT))

    def _as_text(self) -> bytes:
        text = json.dumps(self._tree).encode()
        text = len(text).to_bytes(_LENGTH_BYTES, "big") + text
        return text + b" " * (-len(text) % ALIGNMENT)

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, _PLAIN):
            return value
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self._plain(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self._plain(key), self._plain(item)] for key, item in value.items()]}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.Tensor) and not hasattr(value, "device_mesh"):
            begin, size = self._end, value.numel() * value.element_size()
            self._tensors.append(value)
            self._end += size + -size % ALIGNMENT
            return {"tensor": [str(value.dtype), list(value.shape), begin]}
        raise EncodingError(f"a {type(value).__name__} can't be kept in memory: it is no tensor and no plain value")


def _is_bytes(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's bytes lie on the host as they are to be written."""
    return tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.is_cpu and tensor.is_contiguous()


def decode(data: torch.Tensor) -> Any:
    """Returns the state whose bytes `data` has; its tensors are views of `data`. Raises EncodingError."""
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES].numpy().tobytes(), "big")
        end = _LENGTH_BYTES + length
        text = json.loads(data[_LENGTH_BYTES:end].numpy().tobytes())
        return _value(text, data[end + -end % ALIGNMENT :])
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError, RecursionError) as error:
        raise EncodingError(f"it is no state of a run: {str(error)[:200]}") from None


def cloned(value: Any) -> Any:
    """Returns the value with tensors of its own, which needs nothing of the bytes that it was decoded from."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: cloned(item) for key, item in value.items()}
    return type(value)(map(cloned, value)) if isinstance(value, list | tuple) else value


def _value(plain: Any, data: torch.Tensor) -> Any:
    if isinstance(plain, list):
        return [_value(item, data) for item in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    if kind == "tuple":
        return tuple(_value(item, data) for item in content)
    if kind == "dict":
        return {_value(key, data): _value(item, data) for key, item in content}
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tensor":
        name, shape, begin = content
        dtype = _TYPES[name]
        size = dtype.itemsize
        for length in shape:
            size *= length
        if begin < 0 or begin + size > data.numel():
            raise ValueError("a tensor lies beyond its end")
        return data[begin : begin + size].view(dtype).reshape(shape)
    raise ValueError(f"{kind!r} is not a kind of value")
