"""Reads the JSON paths of printer columns and selectable fields (k8s.io/client-go `util/jsonpath`, as CRDs allow)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], list[Any]]

_TOKEN = re.compile(
    r"""\.?\['(?P<quoted>(?:[^'\\]|\\.)*)'\]
      | \[\?\(@(?P<left>[^=!<>]*?)\s*(?P<operator>==|!=)\s*(?P<right>.*?)\)\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<star>\*)\]
      | \.(?P<field>(?:[^.\[\\]|\\.)+)""",
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """Raised for a path that this reader doesn't support."""


def parse(path: str) -> Callable[[Any], list[Any]]:
    """Returns a function from an object to all values at `.spec.list[?(@.name=="a")].v`. Raises JsonPathError."""
    steps: list[Step] = []
    position = 0
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise JsonPathError(f"{path!r}: can't read it from {text[position:]!r} on")
        steps.append(_step(found))
        position = found.end()

    def find(value: Any) -> list[Any]:
        values = [value]
        for step in steps:
            values = [result for current in values for result in step(current)]
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    if found["operator"]:
        return _filter(found["left"], found["operator"], found["right"])
    if found["index"] is not None:
        index = int(found["index"])
        return lambda value: value[index : index + 1 or None] if isinstance(value, list) else []
    if found["star"]:
        return _children
    name = found["quoted"] if found["quoted"] is not None else found["field"]
    if name == "*":
        return _children
    name = re.sub(r"\\(.)", r"\1", name)
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _children(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _filter(left: str, operator: str, right: str) -> Step:
    inner = parse(left) if left else lambda value: [value]
    literal = right.strip()
    quoted = literal[:1] in "\"'" and literal[-1:] == literal[:1] and len(literal) > 1
    wanted: Any = literal[1:-1] if quoted else json.loads(literal)

    def step(value: Any) -> list[Any]:
        items = value if isinstance(value, list) else []
        return [item for item in items if (wanted in inner(item)) == (operator == "==")]

    return step
