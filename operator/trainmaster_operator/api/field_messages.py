"""Pydantic's errors become messages with a remedy: unknown fields, wrong types, values out of range."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainmaster_operator.api.misplaced import belongs, model_in
from trainmaster_operator.api.nearest import SIMILAR, VERY_SIMILAR, nearest, only_longer
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.v1alpha1 import SpecModel
from trainmaster_operator.api.values import HALF_A_CHARACTER, out_of_range, show, unfit
from trainmaster_operator.api.wrong_types import typographic_quotes, wrong_type

# Tags of the discriminated union of resources.cpu, which pydantic puts into the location.
_TAGS = frozenset({"object", "quantity"})
# Values that a sentence can list.
_FEW = 8
_SOME = 2


def unknown_field(path: str, field: str, known: tuple[str, ...], model: type[SpecModel] | None = None) -> str:
    """Returns the message for a field that isn't known at `path`: the nearest known one, or where it belongs."""
    odd = [character for character in field if not character.isascii()]
    if odd:
        written = "".join(character for character in field if character.isascii()).strip()
        message = unknown_field(path, written, known, model) if written not in known else f"did you mean {written}?"
        what = unicodedata.name(odd[0], "character without a name").lower()
        return f"unknown field with a {what} (U+{ord(odd[0]):04X}) in it; {message.removeprefix('unknown field; ')}"
    near = nearest(field, known, VERY_SIMILAR) or only_longer(field, known)
    if near is None:
        place = belongs(field, path, model)
        if place is not None:
            return f"unknown field; {place}"
        near = nearest(field, known)
    if near is not None:
        return f"unknown field; did you mean {near}?"
    if len(known) > _FEW:
        return "unknown field; remove it (`kubectl explain dtj.spec` has the fields that there are)"
    return f"unknown field; use one of {', '.join(known)}" if known else "unknown field; remove it"


def problems_of(error: ValidationError, root: type[SpecModel], path: str) -> list[Problem]:
    """Returns the problems of a `root`, which stands at `path`, in the order of its fields.

    A field that is missing because it is misspelled, or elsewhere, isn't said to be missing too.
    """
    details = error.errors(include_url=False)
    problems = [_problem_of(each, root, path) for each in details]
    unknown = [each for each, detail in zip(problems, details, strict=True) if detail["type"] == "extra_forbidden"]
    return [
        each
        for each, detail in zip(problems, details, strict=True)
        if detail["type"] != "missing" or not any(_stands_for(other, each.field) for other in unknown)
    ]


def _stands_for(unknown: Problem, field: str) -> bool:
    """Returns whether an unknown field's remedy is to write this one."""
    parent, _, name = field.rpartition(".")
    return unknown.message.endswith((f"; set {field}", f"; it belongs in {field}")) or (
        unknown.field.startswith(f"{parent}.") and unknown.message.endswith(f"; did you mean {name}?")
    )


def _problem_of(detail: ErrorDetails, root: type[SpecModel], path: str) -> Problem:
    location = detail["loc"]
    shown = location
    if location and location[-1] in _TAGS and _model_at(root, location) is None:
        shown = location[:-1]
    parts = [path, *(part for position, part in enumerate(shown) if not _is_tag(shown, position))]
    value = ... if detail["type"] == "missing" else detail["input"]
    field = str(location[-1]) if location else path
    message = _mistyped(detail, field, _required(_model_at(root, location))) or _sentence(
        detail, _model_at(root, location[:-1]), field, _join(parts[:-1])
    )
    return Problem(_join(parts), value, message)


def _is_tag(location: tuple[int | str, ...], position: int) -> bool:
    return location[position] in _TAGS and position > 0 and location[position - 1] == "cpu"


def _mistyped(detail: ErrorDetails, field: str, fields: tuple[str, ...]) -> str | None:
    message = wrong_type(detail["type"], detail["input"], field, fields)
    if message is not None or detail["type"] == "literal_error":
        return typographic_quotes(detail["input"]) or message
    return None


def _sentence(detail: ErrorDetails, model: type[SpecModel] | None, field: str, parent: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    # The setup line may hold what isn't meant for the readers of a status.
    shown = "this text" if field == "setup" and isinstance(value, str) else show(value)
    match kind:
        case "extra_forbidden":
            return unknown_field(parent, field, _field_names(model), model)
        case "missing":
            return f"is missing; set it{_described(model, field)}"
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            return f"{shown} {out_of_range(context)}"
        case "literal_error":
            what = "known" if isinstance(value, str) else "a value that it can have"
            return f"{shown} is not {what}; {_alternatives(value, context['expected'])}"
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
_OURS = frozenset({"quantity", "processes", "json", "time", "pattern"})


def _alternatives(value: Any, expected: str) -> str:
    """Returns the values that a field may have, or the one that was meant."""
    known = re.findall(r"'([^']*)'", expected)
    given = str(value) if isinstance(value, str) else ""
    near = nearest(given, known, VERY_SIMILAR if len(known) <= _FEW else SIMILAR) or only_longer(given, known)
    return f"did you mean {near}?" if near else f"use {expected.replace(chr(39), '')}"


def _described(model: type[SpecModel] | None, field: str) -> str:
    """Returns what a missing field is: its values where it has a few, or the beginning of its description."""
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) != field:
            continue
        if get_origin(info.annotation) is Literal:
            *others, last = get_args(info.annotation)
            return f" to {', '.join(others)} or {last}"
        first = re.split(r"[.;:] |\.$", info.description or "")[0]
        return f" ({first})" if first else ""
    return ""


def _required(model: type[SpecModel] | None) -> tuple[str, ...]:
    """Returns the fields that a mapping must have, or some that it can have."""
    fields = list(model.model_fields.items()) if model is not None else []
    required = [(name, info) for name, info in fields if info.is_required()]
    if not required or any(model_in(info.annotation) is not None for _, info in required):
        required = fields[:_SOME]
    return tuple(info.alias or name for name, info in required)


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
