"""JSON may be as deep as Kubernetes accepts: parts too deep for Python's recursion are kept as text.

Go's encoding/json reads 10,000 levels, and an API server stores every part that has no schema. No schema reaches below
MAX_DEPTH levels (CRDs can't be recursive), so a part at that depth is compared, copied and written unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

MAX_DEPTH = 100
# encoding/json, decode.go: maxNestingDepth.
GO_DEPTH = 10_000
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
# This replaces a deep part while the rest is decoded; the API server allows no such character in any name.
_PLACEHOLDER = "\x00deep "


class TooDeep(ValueError):
    """Raised for JSON that Kubernetes itself refuses."""


@dataclass(frozen=True)
class Deep:
    """A deep part is a list or mapping, stored as JSON."""

    text: bytes


def loads(raw: bytes) -> tuple[Any, bytes]:
    """Returns the value, and its JSON without the deep parts. Raises orjson.JSONDecodeError or TooDeep."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return orjson.loads(raw), raw
    shallow, deep = _cut(raw)
    value = orjson.loads(shallow)
    if not deep:
        return value, shallow
    # The whole text must be JSON.
    levels, rest = MAX_DEPTH, deep
    while rest:
        if levels >= GO_DEPTH:
            raise TooDeep("exceeded max depth")
        cuts = [_cut(text) for text in rest]
        for text, _ in cuts:
            orjson.loads(text)
        levels, rest = levels + MAX_DEPTH, [text for _, deeper in cuts for text in deeper]
    return _restored(value, {f"{_PLACEHOLDER}{number}": Deep(text) for number, text in enumerate(deep)}), shallow


def _cut(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Returns the JSON with placeholders for the parts deeper than MAX_DEPTH, and these parts."""
    parts: list[bytes] = []
    deep: list[bytes] = []
    depth = kept = start = 0
    for token in _TOKENS.finditer(raw):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                start = token.start()
        elif first in b"]}":
            if depth == MAX_DEPTH + 1:
                parts += [raw[kept:start], orjson.dumps(f"{_PLACEHOLDER}{len(deep)}")]
                deep.append(raw[start : token.end()])
                kept = token.end()
            depth -= 1
    # If a bracket isn't closed, this isn't JSON, and the decoder reports it.
    return b"".join([*parts, raw[kept:]]), deep


def _restored(value: Any, deep: dict[str, Deep]) -> Any:
    """Returns the value with its deep parts restored from their placeholders."""
    if isinstance(value, dict):
        return {name: _restored(item, deep) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, deep) for item in value]
    return deep.get(value, value) if isinstance(value, str) else value


def dumps(value: Any) -> bytes:
    """Returns the JSON of a value, including its deep parts."""
    return orjson.dumps(value, default=_fragment, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def copied(value: Any) -> Any:
    """Returns a deep copy of JSON, several times faster than copy.deepcopy."""
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS))
    except TypeError:
        return loads(dumps(value))[0]


def without(value: Any) -> Any:
    """Returns the value with null for deep parts: rules only reach parts with a schema, which are never deep."""
    try:
        orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        return _nulled(value)
    return value


def _nulled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nulled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return None if isinstance(value, Deep) else value


def _fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, Deep):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is no JSON")
