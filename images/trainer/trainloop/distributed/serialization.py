"""Ranks exchange values as JSON, and tensors as raw bytes.

Unlike the pickles of torch's object collectives, a message can't run code when it is received.

A message consists of the length of a JSON text (8 bytes), the text, and raw bytes. The text contains the value, and the
lengths of the pieces of raw bytes. A JSON object with a single key represents a type that JSON lacks: `{"tuple": […]}`,
`{"dict": [[key, value], …]}` (keys may have any type), `{"tensor": [type, shape, number of the piece]}`, and
`{"bytes": …}`, which contains such a tensor. Numbers are written as Python writes them. So floats are exact, NaN and
Infinity are allowed, and integers can have up to 4,300 digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from trainloop.errors import TrainingError

LENGTH_BYTES = 8
TYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def encode(value: Any) -> torch.Tensor:
    """Returns a message with `value`, as a tensor of bytes.

    Raises TypeError if the value contains anything but plain values, bytes and tensors.
    """
    pieces: list[torch.Tensor] = []

    def leaf(value: Any) -> dict[str, Any]:
        if isinstance(value, bytes):
            return {"bytes": leaf(_tensor_of(value))}
        if isinstance(value, torch.Tensor):
            pieces.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
            return {"tensor": [str(value.dtype), list(value.shape), len(pieces) - 1]}
        raise TypeError(f"a {type(value).__name__} can't be sent to other ranks: {str(value)[:80]}")

    plain = to_json(value, leaf)
    text = json.dumps([plain, [piece.numel() for piece in pieces]]).encode()
    return torch.cat([_tensor_of(len(text).to_bytes(LENGTH_BYTES, "big") + text), *pieces])


def decode(message: torch.Tensor) -> Any:
    """Returns the value in a message; tensors are on the CPU.

    Raises TrainingError if `encode` can't have produced the message.
    """
    try:
        end = LENGTH_BYTES + int.from_bytes(message[:LENGTH_BYTES].numpy().tobytes(), "big")
        plain, lengths = json.loads(message[LENGTH_BYTES:end].numpy().tobytes())
        pieces = message[end:].split_with_sizes(lengths)

        def leaf(kind: str, content: Any) -> Any:
            if kind == "bytes":
                return from_json(content, leaf).numpy().tobytes()
            if kind != "tensor":
                raise ValueError(f"{kind!r} is not a kind of value")
            name, shape, number = content
            # The piece is copied, because it may begin at any address, but a tensor of this type must be aligned.
            return pieces[number].clone().view(TYPES[name]).reshape(shape)

        return from_json(plain, leaf)
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError, OverflowError) as error:
        raise TrainingError(f"what came over the network isn't a message of trainloop: {str(error)[:200]}") from None


def to_json(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Returns the value in JSON's types; `leaf` converts values that are neither plain nor containers."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [to_json(item, leaf) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [to_json(item, leaf) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[to_json(key, leaf), to_json(item, leaf)] for key, item in value.items()]}
    return leaf(value)


def from_json(plain: Any, leaf: Callable[[str, Any], Any]) -> Any:
    """Returns the value that `to_json` has converted; `leaf` gets the key and the content of the objects it made."""
    if isinstance(plain, list):
        return [from_json(item, leaf) for item in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    if kind == "tuple":
        return tuple(from_json(item, leaf) for item in content)
    if kind == "dict":
        return {from_json(key, leaf): from_json(item, leaf) for key, item in content}
    return leaf(kind, content)


def _tensor_of(data: bytes) -> torch.Tensor:
    # torch.frombuffer refuses an empty buffer, and warns about a read-only one.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
