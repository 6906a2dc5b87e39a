"""Encodes and decodes JSON where Python's own functions would fail.

Users may write JSON that `json.loads` refuses, because its depth and the length of its numbers are unlimited. Request
bodies are encoded as JSON in UTF-8 that is also valid YAML, because the API server reads a server-side apply as YAML.
In YAML, a character above U+FFFF must not be written as JSON's escaped pair of surrogates (`\\ud83d\\ude00`), because
the API server would answer with status 400.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Number of levels kept of a document that is too deep to decode. It exceeds the limit for jobs and is safe for
# recursion.
MAX_DEPTH = 100
# Maximum digits of an integer that Python always converts (the minimum that sys.set_int_max_str_digits accepts).
SURE_DIGITS = 640
# Brackets and strings. Brackets within strings don't count.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]+', re.DOTALL)


def decode(raw: bytes | str) -> Any:
    """Decodes like `json.loads`, at any depth and with any number. Raises json.JSONDecodeError for invalid JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return decode_shallow(raw)


def decode_shallow(raw: bytes | str) -> Any:
    """Decodes JSON that `json.loads` can't, with null for values below MAX_DEPTH. This is several times slower."""
    whole = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    return json.loads("".join(_shallow(whole)), parse_int=_integer)


def _shallow(document: str) -> Iterator[str]:
    depth = kept = 0
    for token in _TOKENS.finditer(document):
        run = token[0]
        if run[0] == '"':
            continue
        if depth + len(run) <= MAX_DEPTH:
            # Even if all these brackets open a level, they don't exceed the depth.
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
    # float() accepts any number of digits and returns infinity, which every reader refuses.
    return int(digits) if len(digits) <= SURE_DIGITS else float(digits)


# YAML reads these as line breaks or refuses them, unless they are escaped. JSON accepts them.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def encode(body: Any) -> bytes:
    """Returns JSON in UTF-8. Raises ValueError for NaN and infinities, which JSON doesn't support.

    A pair of surrogates is written as the character that it encodes, and half a pair as U+FFFD, as in Go's decoder.
    """
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    if not text.isascii() or "\x7f" in text:
        text = _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def is_larger(value: Any, most: int) -> bool:
    """Returns whether a JSON value exceeds about `most` bytes. Stops reading as soon as the limit is exceeded."""
    # The size of each value includes a comma, which the outermost value doesn't need.
    size = -1
    waiting = [value]
    while waiting:
        one = waiting.pop()
        size += least_bytes(one)
        if size > most:
            return True
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return False


def compact(value: Any) -> bytes:
    """Returns compact JSON in UTF-8. Raises TypeError or ValueError for values that JSON can't represent."""
    # Half a pair of surrogates (\ud800 in JSON) isn't valid UTF-8, but must survive encoding and decoding.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def least_bytes(value: Any) -> int:
    """Returns the minimum size of a value's JSON, including a comma and excluding nested values."""
    if isinstance(value, str):
        return len(value) + 3
    if isinstance(value, dict):
        return 2 + sum(len(name) if isinstance(name, str) else 1 for name in value) + 3 * len(value)
    return 2
