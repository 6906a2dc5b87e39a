"""Columns of figures become bytes and columns again; a figure that isn't known is NaN inside.

Figures are noise to a compressor but for their exponents, so bytes of one significance stand together (as Parquet's
BYTE_STREAM_SPLIT): the planes of exponents nearly vanish. What is drawn as a curve is kept as float32. What is
drawn as a colour is kept in half the bytes, as float16 of 11 significant bits, with one power of two for a column:
it holds a range of 10 to the ninth at full precision, and then less.
"""

from __future__ import annotations

import logging
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

log = logging.getLogger(__name__)
Block = TypeVar("Block")
Read = TypeVar("Read")

NAN = math.nan
# The largest float16 is 65,504.
_HALF_EXPONENT = 15
# Smaller figures are zero, which a power of two that float64 has couldn't lift.
_LEAST_EXPONENT = -1000


def compress(raw: bytes) -> bytes:
    """Returns fewer bytes."""
    return zlib.compress(raw, 6)


def decompress(packed: bytes) -> bytes:
    """Returns what was compressed. Raises ValueError for what wasn't."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"a block can't be read: {error}") from error


def wholes_to_bytes(values: Sequence[int]) -> bytes:
    """Returns whole numbers in 8 bytes each, as differences, which are small for steps and times."""
    differences = array("q", [value - before for value, before in zip(values, (0, *values), strict=False)])
    return _split(_little(differences), 8)


def wholes_from_bytes(raw: bytes) -> list[int]:
    """Returns the whole numbers."""
    differences = array("q", _joined(raw, 8))
    if sys.byteorder == "big":
        differences.byteswap()
    found, value = [], 0
    for difference in differences:
        value += difference
        found.append(value)
    return found


def floats_to_bytes(values: Sequence[float]) -> bytes:
    """Returns figures in 4 bytes each; one beyond float32 becomes infinite."""
    return _split(_little(array("f", values)), 4)


def floats_from_bytes(raw: bytes) -> list[float]:
    """Returns the figures."""
    floats = array("f", _joined(raw, 4))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()


def halves_to_bytes(values: Sequence[float]) -> bytes:
    """Returns figures in 2 bytes each, and 2 more for their power of two."""
    largest = max((abs(value) for value in values if value == value), default=0.0)
    exponent = max(math.frexp(largest)[1] - _HALF_EXPONENT, _LEAST_EXPONENT) if largest else 0
    scale = 2.0**-exponent
    scaled = values if exponent == 0 else [value * scale for value in values]
    return struct.pack("<h", exponent) + _split(struct.pack(f"<{len(values)}e", *scaled), 2)


def halves_from_bytes(raw: bytes) -> array[float]:
    """Returns the figures: blocks of ranks have many, and an array takes a quarter of a list's memory."""
    (exponent,) = struct.unpack_from("<h", raw)
    scaled = struct.unpack(f"<{(len(raw) - 2) // 2}e", _joined(raw[2:], 2))
    scale = 2.0**exponent
    return array("d", [value * scale for value in scaled] if exponent else scaled)


def readable(read: Callable[[Block], Read], blocks: Iterable[Block]) -> Iterator[Read]:
    """Yields what `read` makes of blocks. One that can't be read is passed over: the others are worth having."""
    for block in blocks:
        try:
            found = read(block)
        except (ValueError, KeyError, struct.error) as error:
            log.warning("Some of a job's figures are passed over: %s", error)
        else:
            yield found


def _little(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _split(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def _joined(planes: bytes, width: int) -> bytes:
    joined, count = bytearray(len(planes)), len(planes) // width
    for place in range(width):
        joined[place::width] = planes[place * count : (place + 1) * count]
    return bytes(joined)
