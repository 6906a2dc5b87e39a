"""Tables are aligned like kubectl's, numbers are short, and text from files can't control the terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

#: The text of a cell without a value.
UNKNOWN = "-"


def plain(text: object) -> str:
    """Returns text without characters that control a terminal, such as escape sequences in the name of a tensor."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in str(text))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Returns the lines of a table; columns are three spaces apart, and the last one isn't padded."""
    cells = [list(header), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def size(count: int) -> str:
    """Returns a number of bytes in the largest unit for which the value is at least 1."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def age(created: float | None) -> str:
    """Returns the time since `created` in its two largest units (2d4h, 3m12s)."""
    if created is None:
        return UNKNOWN
    seconds = max(0, int(time.time() - created))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    largest = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[largest : largest + 2] if count) or "0s"


def when(created: float | None) -> str:
    """Returns a date and time in UTC, to the second."""
    return UNKNOWN if created is None else datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def number(value: float) -> str:
    """Returns a number with four significant digits."""
    return f"{value:.4g}"


def results(measured: Mapping[str, float], most: int | None = None) -> str:
    """Returns results as `accuracy=0.857`; a long list is cut."""
    shown = [f"{name}={number(value)}" for name, value in measured.items()]
    more = [f"+{len(shown) - most}"] if most and len(shown) > most else []
    return " ".join([*shown[:most], *more]) or UNKNOWN


def document(value: Any) -> str:
    """Returns JSON that every reader accepts; numbers that JSON lacks (nan, inf) become text."""
    return json.dumps(_json(value), indent=2)


def _json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _json(item) for name, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, list | tuple) else value


def lines(texts: Iterable[str]) -> None:
    """Prints each text on its own line of the terminal."""
    for text in texts:
        print(plain(text))


def say(text: str) -> None:
    """Prints a message that isn't part of the result to standard error."""
    print(f"trainloop: {plain(text)}", file=sys.stderr)
