"""These readers read untrusted JSON from ranks, agents, annotations, statuses, and anyone who may edit an object.

Well-formed JSON can still break a naive reader. `int(Infinity)`, `math.isfinite(10**400)` and `float(10**400)` raise
OverflowError, and `int("9" * 5000)` raises ValueError. `json.loads` raises RecursionError for lists that are nested a
thousand deep, and printing a lone surrogate raises UnicodeEncodeError. So every value passes one of these readers. For
an implausible value, a reader returns None, an empty value or a shortened one, or raises ProtocolError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# All JSON readers read integers up to this number exactly.
MAX_WHOLE = 2**53
# No loss, rate or number of seconds is larger than this, and the sum of a million such numbers is still finite.
MAX_NUMBER = 1e100
# The end of the year 9999, `datetime`'s limit, in seconds since the epoch.
MAX_TIME = 253_402_300_799.0


class ProtocolError(ValueError):
    """A message doesn't fit docs/protocol.md; the text names the field and what is wrong."""


def camel(name: str) -> str:
    """Returns a field's JSON name, such as `firstStep` for `first_step`."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def fields_of(message: Any, *optional: str) -> dict[str, Any]:
    """Returns a NamedTuple's fields by their JSON names. Each `optional` field is left out if it is empty."""
    wire = {}
    for name, value in message._asdict().items():
        if name in optional and (value is None or value is False or value == "" or value == ()):
            continue
        if hasattr(value, "to_wire"):
            value = value.to_wire()
        wire[camel(name)] = list(value) if type(value) is tuple else value
    return wire


def loads(text: str | bytes) -> Any:
    """Decodes JSON like `json.loads`, but raises only ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def is_number(value: object) -> bool:
    """Returns whether a value is a plausible number: finite, with an absolute value of at most MAX_NUMBER."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER


def number(value: object) -> float | None:
    """Returns the value if it is a plausible number, else None."""
    return float(value) if isinstance(value, (int, float)) and is_number(value) else None


def whole(value: object, most: int = MAX_WHOLE) -> int | None:
    """Returns the value if it is an integer from 0 to below `most`, else None, even for True and 1.0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most else None


def decimal(value: object, most: int) -> int | None:
    """Returns the number if the value consists of ASCII digits (as in labels) and is below `most`, else None."""
    if not isinstance(value, str) or not value.isascii() or not value.isdecimal() or len(value) > 16:
        return None
    return whole(int(value), most)


def mapping(value: object) -> Mapping[str, Any]:
    """Returns the value if it is an object, else an empty object."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> Sequence[Mapping[str, Any]]:
    """Returns the objects in a list, without its other items."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def text(value: object, limit: int | None = 1_000) -> str:
    """Returns the beginning of a string as valid Unicode; empty if the value isn't a string."""
    if not isinstance(value, str):
        return ""
    cut = value[:limit]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def one_line(value: object, limit: int) -> str:
    """Returns the beginning of a string like `text`, with a space for each character that can't be printed."""
    return "".join(character if character.isprintable() else " " for character in text(value, limit))


def one_of(known: tuple[str, ...], value: object) -> str | None:
    return value if isinstance(value, str) and value in known else None


def last_lines(error: str, limit: int) -> str:
    """Returns an error's last lines, at most `limit` characters. Long lines are shortened at their end.

    The last line of an error's text states the error, and begins with the exception's name.
    """
    if len(error) <= limit:
        return error
    lines = error.rstrip().split("\n")
    longest = limit if len(lines) == 1 else limit // 2
    kept: list[str] = []
    room = limit
    for line in reversed(lines):
        cut = line if len(line) <= longest else line[: max(0, longest - 3)] + "..."[:longest]
        if len(cut) > room:
            break
        kept.append(cut)
        room -= len(cut) + 1
    return "\n".join(reversed(kept))


def shown(value: object) -> str:
    """Formats a value for a message as a short text on one line. Never raises an exception."""
    if isinstance(value, str):
        return repr(text(value, 40))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} items"
    if isinstance(value, int) and not -(10**20) < value < 10**20:
        return "a number of more than 20 digits"
    return "null" if value is None else str(value)[:40]


def whole_in(data: Mapping[str, Any], name: str, most: int = MAX_WHOLE) -> int:
    """Returns a field that is a whole number from 0 to below `most`. Raises ProtocolError."""
    found = whole(data.get(name), most)
    if found is None:
        limit = "" if most == MAX_WHOLE else f" and below {most}"
        raise ProtocolError(f"{name}: {shown(data.get(name))} is not a whole number of at least 0{limit}")
    return found


def optional_whole(data: Mapping[str, Any], name: str) -> int | None:
    """Returns a whole number like `whole_in`, or None if the field is null or missing. Raises ProtocolError."""
    return None if data.get(name) is None else whole_in(data, name)


def optional_number(data: Mapping[str, Any], name: str) -> float | None:
    """Returns a field that is a finite number, or None if it is null or missing. Raises ProtocolError."""
    value = data.get(name)
    found = number(value)
    if found is None and value is not None:
        raise ProtocolError(f"{name}: {shown(value)} is not a finite number, or is beyond 1e100")
    return found


def seconds_in(data: Mapping[str, Any], name: str, most: float) -> float:
    """Returns a field that is a number of seconds from 0 to `most`. Raises ProtocolError."""
    found = number(data.get(name))
    if found is None or not 0 <= found <= most:
        raise ProtocolError(f"{name}: {shown(data.get(name))} is not a number of seconds from 0 to {most:g}")
    return found


def mapping_in(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a field that is an object. Raises ProtocolError."""
    value = data.get(name)
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{name}: {shown(value)} is not an object")
    return value


def time_in(data: Mapping[str, Any], name: str) -> float:
    """Returns a field that is a time in seconds since the epoch, 0 if it is missing. Raises ProtocolError."""
    return 0.0 if data.get(name) is None else seconds_in(data, name, MAX_TIME)
