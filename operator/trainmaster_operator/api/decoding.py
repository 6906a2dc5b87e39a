"""JSON of any depth and with any number is decoded here: users may write what Python's parser refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Levels that are kept of what is too deep to decode: more than a job may have (`limits`), few enough for any recursion.
MAX_DEPTH = 100
# Digits of a whole number that Python surely converts (sys.set_int_max_str_digits takes no fewer).
SURE_DIGITS = 640
# Strings, so that brackets in them don't count, and brackets.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]+', re.DOTALL)


def decode(raw: bytes | str) -> Any:
    """Decodes as `json.loads` does, but any depth and any number. Raises json.JSONDecodeError for what isn't JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return decode_shallow(raw)


def decode_shallow(raw: bytes | str) -> Any:
    """Decodes what `json.loads` can't, with null for everything below MAX_DEPTH; several times slower."""
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
