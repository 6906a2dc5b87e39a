"""Plain values are those that Python's own notation gives back: None, bools, numbers, text and containers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any

from trainmaster.client.errors import InvalidRequest

_MAX_DEPTH = 50


def is_literal(value: object, depth: int = 0) -> bool:
    """Returns whether `repr` of a value gives it back. A subclass has a text of its own, so it doesn't count."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if depth >= _MAX_DEPTH:
        return False
    if kind is dict:
        return all(is_literal(part, depth + 1) for pair in value.items() for part in pair)  # type: ignore[attr-defined]
    return kind in (list, tuple) and all(is_literal(part, depth + 1) for part in value)  # type: ignore[attr-defined]


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for arguments that the function doesn't take, or that no text can bring to it."""
    name = getattr(function, "__name__", "the function")
    for argument, value in arguments.items():
        if not is_literal(value):
            raise InvalidRequest(
                f"arguments: {argument} is an object of type {type(value).__name__}: give None, True, False, finite "
                f"numbers, text, and lists and mappings of them, and make the rest within {name}"
            )
    described: Signature = signature(function)
    try:
        described.bind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"arguments: {name}{described} can't be called with them: {error}") from error
