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


# YAML takes these for line breaks or refuses them, unless they are escaped; JSON takes them as they are.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def encode(body: Any) -> bytes:
    """Returns JSON in UTF-8. Raises ValueError for NaN and infinities, which JSON doesn't have.

    Of surrogates in text, a pair is the character that it means, and a half becomes U+FFFD, as in Go's decoder.
    """
    text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    if not text.isascii() or "\x7f" in text:
        text = _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def is_larger(value: Any, most: int) -> bool:
    """Returns whether a value from JSON is larger than about `most` bytes; reads no more of it than that."""
    # The outermost value has no comma.
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
    """Returns a value as compact JSON in UTF-8. Raises TypeError or ValueError for what JSON can't hold."""
    # Half a pair of surrogates, which JSON's \ud800 gives, is no UTF-8; it has to come back as it was.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def least_bytes(value: Any) -> int:
    """Returns the bytes of JSON that a value has at least, what is in it not counted, with a comma."""
    if isinstance(value, str):
        return len(value) + 3
    if isinstance(value, dict):
        return 2 + sum(len(name) if isinstance(name, str) else 1 for name in value) + 3 * len(value)
    return 2
