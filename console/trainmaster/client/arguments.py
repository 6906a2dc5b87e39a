"""Arguments of a type that no method takes are refused with a sentence, before Python stumbles over them."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from trainmaster.client.errors import InvalidRequest


def require(argument: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Raises InvalidRequest for a value of another type. True and False aren't numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidRequest(f"{argument} is of type {type(value).__name__}: give {remedy}")


def require_manifest(value: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what is no manifest."""
    require("manifest", value, Mapping, "the job as a mapping, such as yaml.safe_load makes of a file's text")


def require_count(argument: str, value: int | None) -> None:
    """Raises InvalidRequest for what is neither None nor a whole number from 0."""
    if value is not None:
        require(argument, value, Integral, "a whole number")
        if value < 0:
            raise InvalidRequest(f"{argument} is {value}: give a whole number from 0")


def require_seconds(argument: str, value: float | None) -> None:
    """Raises InvalidRequest for what is neither None nor a number."""
    if value is not None:
        require(argument, value, Real, "a number of seconds")


def require_text(argument: str, value: str | None, remedy: str) -> None:
    """Raises InvalidRequest for what is neither None nor text."""
    if value is not None:
        require(argument, value, str, remedy)
