"""Pydantic's errors become messages with a remedy: unknown fields, wrong types, values out of range."""

from __future__ import annotations

import difflib
import re
from typing import Any, get_args

from pydantic_core import ErrorDetails

from trainmaster.api.problems import Problem
from trainmaster.api.v1alpha1 import JobSpec, SpecModel
from trainmaster.api.values import HINTS, show

# Tags of the discriminated union of resources.cpu, which pydantic puts into the location.
_TAGS = frozenset({"object", "quantity"})


def unknown_field(field: str, known: tuple[str, ...]) -> str:
    """Returns the message for a field that isn't known, with the nearest known one where there is one."""
    near = difflib.get_close_matches(field, known, n=1, cutoff=0.6)
    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}" if known else "remove it"
    return f"unknown field; {remedy}"


def unfit(value: Any, pattern: str) -> str:
    """Returns the message for a text that doesn't fit a pattern."""
    return f"{show(value)} can't be used; {HINTS.get(pattern, f'it must fit {pattern}')}"


def problem_of(detail: ErrorDetails) -> Problem:
    """Returns the problem for one of pydantic's errors."""
    location = detail["loc"]
    path = ["spec", *location]
    model = _model_at(location[:-1])
    shown = location
    if location and location[-1] in _TAGS and _model_at(location) is None:
        shown = location[:-1]
    path = ["spec", *(part for position, part in enumerate(shown) if not _is_tag(shown, position))]
    value = ... if detail["type"] == "missing" else detail["input"]
    return Problem(_join(path), value, _sentence(detail, model, str(location[-1]) if location else "spec"))


def _is_tag(location: tuple[int | str, ...], position: int) -> bool:
    return location[position] in _TAGS and position > 0 and location[position - 1] == "cpu"


def _sentence(detail: ErrorDetails, model: type[SpecModel] | None, field: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    # The setup line may hold what isn't meant for the readers of a status.
    shown = "this text" if field == "setup" and isinstance(value, str) else show(value)
    expected = EXPECTED.get(kind)
    if expected is not None:
        return f"{shown} is not {expected}"
    match kind:
        case "extra_forbidden":
            return unknown_field(field, _field_names(model))
        case "missing":
            return f"is missing; set it{_described(model, field)}"
        case "greater_than_equal":
            return f"{shown} is too small; use at least {context['ge']:g}"
        case "greater_than":
            return f"{shown} is too small; use more than {context['gt']:g}"
        case "less_than_equal":
            return f"{shown} is too large; use at most {context['le']:g}"
        case "literal_error":
            return f"{shown} is not known; {_alternatives(value, context['expected'])}"
        case "string_pattern_mismatch":
            return unfit(value, context["pattern"])
        case "string_too_short" | "too_short":
            return f"{shown} is too short; give at least {context['min_length']}"
        case "string_too_long" | "too_long":
            return f"{shown} is too long; give at most {context['max_length']}"
    # Messages of our own types, and what pydantic may add.
    return detail["msg"]


EXPECTED = {
    "int_type": "a whole number; write it without quotes and without a fraction",
    "int_from_float": "a whole number; write it without a fraction",
    "float_type": "a number; write it without quotes",
    "finite_number": "a finite number; use one",
    "string_type": "text; write it in quotes",
    "bool_type": "true or false; write one of them without quotes",
    "list_type": "a list; write its items in brackets or one a line after '-'",
    "dict_type": "a mapping; give its fields",
    "model_type": "a mapping; give its fields",
    "model_attributes_type": "a mapping; give its fields",
}


def _alternatives(value: Any, expected: str) -> str:
    """Returns the values that a field may have, or the nearest where there are many."""
    known = re.findall(r"'([^']*)'", expected)
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near and len(known) > 8 else f"use {expected.replace(chr(39), '')}"


def _described(model: type[SpecModel] | None, field: str) -> str:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == field and info.description:
            return f" ({info.description.rstrip('.')})"
    return ""


def _field_names(model: type[SpecModel] | None) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items()) if model is not None else ()


def _model_at(location: tuple[int | str, ...]) -> type[SpecModel] | None:
    """Returns the model that pydantic's location points to."""
    model: type[SpecModel] | None = JobSpec
    for part in location:
        if isinstance(part, int) or part in _TAGS:
            continue
        model = _model_in(_annotation(model, part))
    return model


def _annotation(model: type[SpecModel] | None, alias: str) -> Any:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == alias:
            return info.annotation
    return None


def _model_in(annotation: Any) -> type[SpecModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _join(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
