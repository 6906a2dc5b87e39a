"""Makes docs/training-reference.md from the loop's models: every field of a training configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from trainloop.config import Config
from trainloop.settings import models_in
from trainloop.tasks import BUILT_IN, imported

_INTRODUCTION = "Look up every field of `spec.training` here; [training.md](training.md) explains the loop."


def training_reference() -> str:
    """Returns the page with all fields of the training configuration, and all options of the built-in tasks."""
    lines = ["# Training configuration", "", _INTRODUCTION, "", *_table(Config, "")]
    for name, target in BUILT_IN.items():
        lines += [f"## task.options of `{name}`", "", *_table(imported("task.name", target).Options, "task.options.")]
    return "\n".join(lines) + "\n"


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    yield from _rows(model, prefix)
    yield ""


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yields a row for each field, including the fields of sections."""
    for name, info in model.model_fields.items():
        inner = next(iter(models_in(info.annotation)), None)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{name}.")
        else:
            default = info.get_default(call_default_factory=True, validated_data={})
            shown = "required" if default is PydanticUndefined else f"`{_flow(default)}`"
            yield f"| `{prefix}{name}` | {_kind(info.annotation)} | {shown} | {info.description or ''} |"


def _flow(value: Any) -> str:
    """Returns a value as one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).splitlines()[0]


def _kind(annotation: Any) -> str:
    """Returns a type in the terms of YAML, or the values if only some are valid."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is Annotated or origin is re.Pattern:
        return _kind(arguments[0])
    if origin in (UnionType, Union):
        return " or ".join(_kind(argument) for argument in arguments)
    if origin in (list, tuple):
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(annotation, str(getattr(annotation, "__name__", annotation)))
