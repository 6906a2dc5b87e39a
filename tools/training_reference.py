"""This module makes docs/training-reference.md: every field of a training configuration, from the loop's models."""

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


def training_reference() -> str:
    """Returns the page of all fields of the training configuration and of the built-in tasks' options."""
    lines = ["# Training configuration", "", *_tables(Config, "")]
    for name, target in BUILT_IN.items():
        lines += [f"## task.options of `{name}`", "", *_tables(imported("task.name", target).Options, "task.options.")]
    return "\n".join(lines) + "\n"


def _tables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    if model.__doc__ and prefix:
        yield from (model.__doc__.strip(), "")
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    nested = []
    for name, info in model.model_fields.items():
        inner = next(iter(models_in(info.annotation)), None)
        if inner is not None:
            nested.append((f"{prefix}{name}", inner))
            continue
        default = info.get_default(call_default_factory=True, validated_data={})
        shown = "required" if default is PydanticUndefined else f"`{_flow(default)}`"
        yield f"| `{prefix}{name}` | {_kind(info.annotation)} | {shown} | {info.description or ''} |"
    yield ""
    for name, inner in nested:
        yield from (f"## {name}", "")
        yield from _tables(inner, f"{name}.")


def _flow(value: Any) -> str:
    """Returns a value in one line of YAML, as it is written in a configuration."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).splitlines()[0]


def _kind(annotation: Any) -> str:
    """Returns a type as the user of a YAML file thinks of it: the values where only some will do."""
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
