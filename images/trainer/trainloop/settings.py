"""Every component's settings are immutable and typed, and refuse unknown names.

A component declares its settings beside its code as a subclass of `Settings`; `trainloop.config` combines all of them
into one document. `sentences` describes each mistake in such a document.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails


class Settings(BaseModel):
    """Settings are immutable, and refuse unknown names, NaN and infinity; this is the base class of all settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses booleans for numbers.

        YAML 1.1 (which kubectl uses) reads a bare `off` as false, and pydantic reads `true` as 1.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = (annotation, *get_args(annotation))
        if value is False and "off" in kinds:
            return "off"
        if isinstance(value, bool) and (int in kinds or float in kinds):
            raise ValueError(f"{value} is a switch: it must be a number")
        return value


def section(kind: type[BaseModel]) -> Any:
    """Returns a field whose default is `kind` with its own defaults."""
    return Field(default_factory=lambda: kind.model_validate({}))


def sentences(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[str]:
    """Returns a message for each of pydantic's errors in a document for `model`; `prefix` precedes field names."""
    by_field: dict[tuple[int | str, ...], ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        place = detail["loc"]
        if place and place[-1] in ("bool", "str") and _model_at(model, list(place[:-1])) is None:
            # Pydantic reports each possible type of a field as if it were a nested field. One message lists them all.
            place, message = place[:-1], detail["msg"]
            if place in by_field:
                message = f"{by_field[place]['msg']}, or {message.removeprefix('Input should be ')}"
            detail = {**detail, "loc": place, "msg": message}
        elif alternatives := [part for part in place if part == "constrained-int" or str(part).startswith("tuple[")]:
            # The field accepts one number or a list of two, and a single message about that is enough.
            place = place[: place.index(alternatives[0])]
            if place in by_field:
                continue
            detail = {**detail, "loc": place, "msg": f"{detail['msg']}, or a list of two numbers"}
        by_field[place] = detail
    return [_sentence(detail, model, prefix) for detail in by_field.values()]


def _sentence(detail: ErrorDetails, model: type[BaseModel], prefix: str) -> str:
    path = [part for part in detail["loc"] if not (isinstance(part, str) and "[" in part)]
    field = ".".join([*([prefix] if prefix else []), *map(str, path)]) or "the configuration"
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        return _unknown(field, str(path[-1]), value, _model_at(model, path[:-1]))
    if detail["type"] == "missing":
        return f"{field} is missing: it is required"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "model_type" and (fields := _model_at(model, path)):
        message = f"it must be a mapping with the fields {', '.join(fields.model_fields)}"
    if detail["type"] == "value_error":
        return f"{field}: {message}" if path else message
    return f"{field} is {_short(value)}: {message[0].lower()}{message[1:]}"


def _unknown(field: str, name: str, value: object, model: type[BaseModel] | None) -> str:
    known = list(model.model_fields) if model else []
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known)}"
    return f"{field} (value {_short(value)}) is not a field: {remedy}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _model_at(model: type[BaseModel], path: list[Any]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            return None
        current = next(iter(models_in(current.model_fields[str(part)].annotation)), None)
    return current


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the settings models in a field's annotation, also those within `| None`, lists and dicts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)
