"""Readers of JSON that others wrote: pods, annotations, statuses, anybody who may edit an object.

JSON of the right form can still hold what breaks a naive reader: `int(Infinity)`, `math.isfinite(10**400)` and
`float(10**400)` raise OverflowError, `int("9" * 5000)` ValueError, `json.loads` of lists a thousand deep
RecursionError, a lone surrogate UnicodeEncodeError wherever it is printed. So every value goes through one of these
readers, which are total: what isn't a plausible value of the kind asked for is None, empty or cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Whole numbers that every reader of JSON agrees on.
MAX_WHOLE = 2**53
# Beyond any loss, rate or count of seconds, and a million of them still add up to a finite number.
MAX_NUMBER = 1e100
# Levels that are kept of what is too deep to decode: more than a job may have (`limits`), few enough for any recursion.
MAX_DEPTH = 100
# Digits of a whole number that Python surely converts (sys.set_int_max_str_digits takes no fewer).
SURE_DIGITS = 640
# Strings, so that brackets in them don't count, and brackets.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]+', re.DOTALL)
# The end of the year 9999, in seconds since the epoch: what `datetime` can show.
MAX_TIME = 253_402_300_799.0


def loads(text: str | bytes) -> Any:
    """`json.loads`, but ValueError is all that it raises."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def decode(raw: bytes | str) -> Any:
    """`json.loads` that takes any depth and any number. Raises json.JSONDecodeError for what isn't JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return decode_shallow(raw)


def decode_shallow(raw: bytes | str) -> Any:
    """A document that `json.loads` can't decode, with null for everything below MAX_DEPTH; several times slower."""
    whole = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    return json.loads("".join(_shallow(whole)), parse_int=_integer)


def _shallow(document: str) -> Iterator[str]:
    depth = kept = 0
    for token in _TOKENS.finditer(document):
        run = token[0]
        if run[0] == '"':
            continue
        if depth + len(run) <= MAX_DEPTH:
            # However its brackets follow each other, they don't reach so deep.
            depth += run.count("[") + run.count("{") - run.count("]") - run.count("}")
            continue
        for place, bracket in enumerate(run, token.start()):
            if bracket in "[{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    yield document[kept:place]
            else:
                if depth == MAX_DEPTH + 1:
                    yield "null"
                    kept = place + 1
                depth -= 1
    if depth <= MAX_DEPTH:
        yield document[kept:]


def _integer(digits: str) -> int | float:
    # float() takes any number of digits, and answers infinity, which no reader takes for a value.
    return int(digits) if len(digits) <= SURE_DIGITS else float(digits)


def is_whole(value: object, most: int = MAX_WHOLE) -> bool:
    """Whether it is a whole number from 0 to below `most`; true and 1.0 are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most


def is_number(value: object) -> bool:
    """Whether it is a plausible number: finite, and within MAX_NUMBER of zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER


def whole(value: object, most: int = MAX_WHOLE) -> int | None:
    """A whole number from 0 to below `most`, else None."""
    return value if isinstance(value, int) and is_whole(value, most) else None


def decimal(value: object, most: int) -> int | None:
    """A whole number below `most` that is written in ASCII digits, as labels and names have it, else None."""
    if not isinstance(value, str) or not value.isascii() or not value.isdecimal() or len(value) > 16:
        return None
    return whole(int(value), most)


def mapping(value: object) -> Mapping[str, Any]:
    """An object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> Sequence[Mapping[str, Any]]:
    """The objects in a list; whatever else stands in it is passed over."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def text(value: object, limit: int | None = 1_000, *, from_end: bool = False) -> str:
    """The beginning (or the end) of a string as valid Unicode; empty for anything that isn't a string."""
    if not isinstance(value, str):
        return ""
    cut = value[-limit:] if from_end and limit is not None else value[:limit]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def shown(value: object) -> str:
    """A value as a message shows it: short, on one line, and never an error of its own."""
    if isinstance(value, str):
        return repr(text(value, 40))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and not -(10**20) < value < 10**20:
        return "a number of more than 20 digits"
    return "null" if value is None else repr(str(value)[:40])
