"""A checkpoint's weights are written as safetensors, one tensor after the other.

safetensors' own `save_file` needs all tensors in memory. The format is a JSON header with its length before it (8
bytes, little-endian), then the tensors' bytes without gaps (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainloop.checkpoints import storage
from trainloop.checkpoints.verification import CheckpointError
from trainloop.versions.catalog import CommandError
from trainloop.versions.output import size
from trainloop.versions.tensors import Weights, chunks

#: The format's names of torch's types.
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


@dataclass(frozen=True)
class Exported:
    """What a file has got."""

    tensors: int
    bytes: int  # of the whole file
    infinite: list[str]  # tensors with numbers that are too large for the type asked for


def write_safetensors(weights: Weights, file: Path, dtype: torch.dtype | None, about: dict[str, str]) -> Exported:
    """Write all weights to `file`, which appears when it is complete; floating-point ones as `dtype`, where one is
    given. `about` is text for the header.

    Raises CommandError where the file can't be written, CheckpointError where a tensor can't be read.
    """
    types = {name: _type(name, weights.shape(name)[0], dtype) for name in weights}
    # Large types first: every tensor then begins at a multiple of its size.
    order = sorted(types, key=lambda name: (-types[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **about}}
    end = 0
    for name in order:
        begin, end = end, end + weights.shape(name)[1].numel() * types[name].itemsize
        header[name] = {
            "dtype": TYPES[types[name]],
            "shape": list(weights.shape(name)[1]),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    infinite = []
    try:
        with partial.open("xb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                overflowed = False
                for part in chunks(weights[name]):
                    converted = part.to(types[name]).contiguous()
                    stream.write(converted.view(torch.uint8).numpy().data)
                    if converted.dtype != part.dtype:
                        overflowed |= bool((converted.isinf() & ~part.isinf()).any())
                infinite += [name] if overflowed else []
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
        storage.sync(file.parent)
    except OSError as error:
        raise CommandError(f"{file} can't be written ({size(end)} are needed): {error.strerror}") from error
    except (RuntimeError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"a tensor of {weights.folder} can't be exported: {first}") from error
    finally:
        partial.unlink(missing_ok=True)
    return Exported(len(order), 8 + len(text) + end, infinite)


def _type(name: str, own: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Returns the type that a tensor is written as."""
    result = asked if asked is not None and own.is_floating_point else own
    if result not in TYPES:
        raise CommandError(f"{name} has type {own}, which safetensors hasn't")
    return result
