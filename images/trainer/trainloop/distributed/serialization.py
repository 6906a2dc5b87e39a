"""Values are serialized for the ranks to send each other: JSON for what is plain, raw bytes for tensors. Nothing in it
can run code where it is received, unlike the pickles of torch's object collectives.

A message is 8 bytes with the length of a JSON text, that text, and the raw bytes. The text is the value, with one
object for each thing that JSON doesn't have: `{"tuple": […]}`, `{"dict": [[key, value], …]}` (keys of any kind),
`{"bytes": [start, length]}` and `{"tensor": [type, shape, start]}`. Numbers are as Python writes them: floats to the
bit, NaN and Infinity too, whole numbers of up to 4,300 digits.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from trainloop.errors import TrainingError

LENGTH_BYTES = 8
TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex64, torch.complex128, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    )
}


def encode(value: Any) -> torch.Tensor:
    """Returns the message, as a tensor of bytes. Raises TypeError for what isn't a plain value or a tensor."""
    raw: list[torch.Tensor] = []
    text = json.dumps(_plain(value, raw)).encode()
    head = len(text).to_bytes(LENGTH_BYTES, "big") + text
    return torch.cat([_of_bytes(head), *raw])


def decode(message: torch.Tensor) -> Any:
    """Returns the value of a message; tensors are on the CPU. Raises TrainingError for what `encode` doesn't make."""
    try:
        end = LENGTH_BYTES + int.from_bytes(bytes(message[:LENGTH_BYTES].tolist()), "big")
        if not LENGTH_BYTES < end <= message.numel():
            raise ValueError(f"its text would end at byte {end} of {message.numel()}")
        return _value(json.loads(message[LENGTH_BYTES:end].numpy().tobytes()), message[end:])
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError, OverflowError) as error:
        raise TrainingError(f"what came over the network isn't a message of trainloop: {str(error)[:200]}") from None


def _plain(value: Any, raw: list[torch.Tensor]) -> Any:
    """Returns the value as JSON has it; what is bytes goes to `raw`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(item, raw) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, raw) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key, raw), _plain(item, raw)] for key, item in value.items()]}
    start = sum(piece.numel() for piece in raw)
    if isinstance(value, bytes):
        raw.append(_of_bytes(value))
        return {"bytes": [start, len(value)]}
    if isinstance(value, torch.Tensor) and value.dtype in TYPES.values():
        raw.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), start]}
    raise TypeError(f"a {type(value).__name__} can't be sent to other ranks: {str(value)[:80]}")


def _value(plain: Any, raw: torch.Tensor) -> Any:
    if isinstance(plain, list):
        return [_value(item, raw) for item in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    if kind == "tuple":
        return tuple(_value(item, raw) for item in content)
    if kind == "dict":
        return {_value(key, raw): _value(item, raw) for key, item in content}
    if kind == "bytes":
        start, length = content
        return _part(raw, start, length).numpy().tobytes()
    if kind == "tensor":
        name, shape, start = content
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"{shape} is not a shape")
        part = _part(raw, start, math.prod(shape) * TYPES[name].itemsize)
        # A copy: the part may begin anywhere, a tensor of its type may not.
        return part.clone().view(TYPES[name]).reshape(shape)
    raise ValueError(f"{kind!r} is not a kind of value")


def _part(raw: torch.Tensor, start: Any, length: Any) -> torch.Tensor:
    if not isinstance(start, int) or not isinstance(length, int) or not 0 <= start <= start + length <= raw.numel():
        raise ValueError(f"{length} bytes from {start} of {raw.numel()}")
    return raw[start : start + length]


def _of_bytes(data: bytes) -> torch.Tensor:
    # torch.frombuffer refuses an empty buffer, and warns of one that can't be written to.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
