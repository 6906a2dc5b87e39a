"""Pydantic's errors become messages with a remedy: unknown fields, wrong types, values out of range."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import ErrorDetails

from trainmaster.api.misplaced import belongs, model_in
from trainmaster.api.nearest import SIMILAR, VERY_SIMILAR, nearest, only_longer
from trainmaster.api.problems import Problem
from trainmaster.api.v1alpha1 import SpecModel
from trainmaster.api.values import HALF_A_CHARACTER, HINTS, number, show

# Tags of the discriminated union of resources.cpu, which pydantic puts into the location.
_TAGS = frozenset({"object", "quantity"})
# Values that a sentence can list.
_FEW = 8


def unknown_field(path: str, field: str, known: tuple[str, ...], model: type[SpecModel] | None = None) -> str:
    """Returns the message for a field that isn't known at `path`: the nearest known one, or where it belongs."""
    near = nearest(field, known, VERY_SIMILAR)
    if near is None:
        place = belongs(field, path, model)
        if place is not None:
            return f"unknown field; {place}"
        near = nearest(field, known)
    remedy = f"did you mean {near}?" if near else f"use one of {', '.join(known)}" if known else "remove it"
    return f"unknown field; {remedy}"


def unfit(value: Any, pattern: str) -> str:
    """Returns the message for a text that doesn't fit a pattern."""
    return f"{show(value)} can't be used; {HINTS[pattern]}"


def problem_of(detail: ErrorDetails, root: type[SpecModel], path: str) -> Problem:
    """Returns the problem for one of pydantic's errors in a `root`, which stands at `path`."""
    location = detail["loc"]
    shown = location
    if location and location[-1] in _TAGS and _model_at(root, location) is None:
        shown = location[:-1]
    parts = [path, *(part for position, part in enumerate(shown) if not _is_tag(shown, position))]
    value = ... if detail["type"] == "missing" else detail["input"]
    field = str(location[-1]) if location else path
    return Problem(_join(parts), value, _sentence(detail, _model_at(root, location[:-1]), field, _join(parts[:-1])))


def _is_tag(location: tuple[int | str, ...], position: int) -> bool:
    return location[position] in _TAGS and position > 0 and location[position - 1] == "cpu"


def _sentence(detail: ErrorDetails, model: type[SpecModel] | None, field: str, parent: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    # The setup line may hold what isn't meant for the readers of a status.
    shown = "this text" if field == "setup" and isinstance(value, str) else show(value)
    if kind in _NUMBERS and field.endswith("Seconds") and isinstance(value, str):
        return f"{shown} is not a number; give seconds as a number, such as {number(_seconds(value) or 5)}"
    expected = EXPECTED.get(kind)
    if expected is not None:
        return f"{shown} is not {expected}"
    match kind:
        case "extra_forbidden":
            return unknown_field(parent, field, _field_names(model), model)
        case "missing":
            return f"is missing; set it{_described(model, field)}"
        case "greater_than_equal":
            return f"{shown} is too small; use at least {number(context['ge'])}"
        case "greater_than":
            return f"{shown} is too small; use more than {number(context['gt'])}"
        case "less_than_equal":
            return f"{shown} is too large; use at most {number(context['le'])}"
        case "literal_error":
            return f"{shown} is not known; {_alternatives(value, context['expected'])}"
        case "string_pattern_mismatch":
            return unfit(value, context["pattern"])
        case "string_too_short" | "too_short":
            return "is empty; give it a value, or remove it"
        case "string_too_long":
            return f"{shown} is too long; use at most {context['max_length']} characters"
        case "too_long":
            return f"has {context['actual_length']} items; use at most {context['max_length']}"
        case "string_unicode":
            return HALF_A_CHARACTER
    if kind in _OURS:
        return detail["msg"]
    return f"{shown} can't be used; see the field in docs/reference.md"


# Errors of our own types, which bring their sentences.
_OURS = frozenset({"quantity", "processes", "json", "time"})
_NUMBERS = frozenset({"int_type", "float_type"})
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
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)(?:s(?:ec)?)?)?", re.IGNORECASE)
_DURATION_UNITS = (86_400, 3_600, 60, 1)


def _seconds(text: str) -> float | None:
    """Returns the seconds of what people write for a duration: 300, 5s, 1h30m."""
    parts = _DURATION.fullmatch(text.replace(" ", "")) if len(text) < 20 else None
    if parts is None:
        return None
    return sum(float(part) * unit for part, unit in zip(parts.groups(), _DURATION_UNITS, strict=True) if part)


def _alternatives(value: Any, expected: str) -> str:
    """Returns the values that a field may have, or the one that was meant."""
    known = re.findall(r"'([^']*)'", expected)
    given = str(value) if isinstance(value, str) else ""
    near = nearest(given, known, VERY_SIMILAR if len(known) <= _FEW else SIMILAR) or only_longer(given, known)
    return f"did you mean {near}?" if near else f"use {expected.replace(chr(39), '')}"


def _described(model: type[SpecModel] | None, field: str) -> str:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == field and info.description:
            return f" ({info.description.rstrip('.')})"
    return ""


def _field_names(model: type[SpecModel] | None) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items()) if model is not None else ()


def _model_at(root: type[SpecModel], location: tuple[int | str, ...]) -> type[SpecModel] | None:
    """Returns the model that pydantic's location in a `root` points to."""
    model: type[SpecModel] | None = root
    for part in location:
        if isinstance(part, int) or part in _TAGS:
            continue
        model = model_in(_annotation(model, part))
    return model


def _annotation(model: type[SpecModel] | None, alias: str) -> Any:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == alias:
            return info.annotation
    return None


def _join(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
