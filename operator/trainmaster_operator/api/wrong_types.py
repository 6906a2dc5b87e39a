"""A value of the wrong type gets the remedy that fits it: quotes to take away only where there are some."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainmaster_operator.api.values import number, show

# What pydantic's type of an error says that the value should be.
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
# The remedy where nothing is known of the value.
EXPECTED = {
    "int_type": "a whole number; write it without quotes and without a fraction",
    "int_from_float": "a whole number; write it without a fraction",
    "float_type": "a number; write it without quotes",
    "string_type": "text; write it in quotes",
    "bool_type": "true or false; write one of them without quotes",
    "list_type": "a list; write its items in brackets or one a line after '-'",
    "dict_type": "a mapping; give its fields",
}
_PLACEHOLDER = re.compile(
    r"\$\{.*\}|\$[A-Za-z_]+|<.*>|\{\{.*\}\}|%\w+%|TODO|FIXME|TBD|CHANGEME|\.\.\.|…", re.IGNORECASE
)
_TYPOGRAPHIC = re.compile("[\u201c\u201d\u201e\u201f\u2018\u2019\u201a\xab\xbb]")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)(?:s(?:ec)?)?)?", re.IGNORECASE)
_DURATION_UNITS = (86_400, 3_600, 60, 1)
_LONGEST_DURATION = 20
# A value that a remedy repeats is no longer.
_LONGEST_VALUE = 40
# Fields that a remedy names.
_MOST_FIELDS = 3


def wrong_type(kind: str, value: Any, field: str = "", fields: Sequence[str] = (), *, remedy: str = "") -> str | None:
    """Returns the message for a value that isn't of the type of pydantic's error `kind`; None for other errors.

    `field` is the field's name, and `fields` are those of the mapping that it should be. `remedy` is better than the
    general one, where it is given.
    """
    wanted = _WANTED.get(kind)
    if wanted is None:
        return None
    if isinstance(value, str) and _PLACEHOLDER.fullmatch(value.strip()):
        return f"{show(value)} is a placeholder; put {wanted} there"
    if kind in ("int_type", "float_type") and "Seconds" in field and isinstance(value, str):
        return f"{show(value)} is not a number; give seconds as a number, such as {number(_seconds(value) or 5)}"
    return f"{show(value)} is not {wanted}; {remedy or _remedy(kind, value, fields)}"


def typographic_quotes(value: Any) -> str | None:
    """Returns the message for a text between quotes that a word processor made, which are part of it in YAML."""
    if not isinstance(value, str) or not (_TYPOGRAPHIC.match(value) or _TYPOGRAPHIC.fullmatch(value[-1:])):
        return None
    return f"{show(value)} has typographic quotes, which YAML takes as text; write ' or \" in place of them"


def _remedy(kind: str, value: Any, fields: Sequence[str]) -> str:
    match kind:
        case "int_type" | "int_from_float":
            if isinstance(value, float):
                return "write it without a fraction"
            is_quoted = isinstance(value, str) and _INTEGER.fullmatch(value)
            return "write it without quotes" if is_quoted else "use one, such as 2"
        case "float_type":
            is_quoted = isinstance(value, str) and _NUMBER.fullmatch(value)
            return "write it without quotes" if is_quoted else "use one, such as 0.5"
        case "finite_number":
            return "use one"
        case "string_type":
            return "give one text" if isinstance(value, list | dict) or value is None else "write it in quotes"
        case "bool_type":
            return "write one of them without quotes" if isinstance(value, str) else "use one of them"
        case "list_type":
            return "write its items in brackets or one a line after '-'"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z]+:\S*", value):
        return "write a space after ':'"
    if isinstance(value, str) and len(fields) == 1 and len(value) < _LONGEST_VALUE:
        return f"write {{{fields[0]}: {value}}}"
    named = list(fields[:_MOST_FIELDS])
    return f"give its fields, such as {' and '.join(named)}" if named else "give its fields"


def _seconds(text: str) -> float | None:
    """Returns the seconds of what people write for a duration: 300, 5s, 1h30m."""
    parts = _DURATION.fullmatch(text.replace(" ", "")) if len(text) < _LONGEST_DURATION else None
    if parts is None:
        return None
    return sum(float(part) * unit for part, unit in zip(parts.groups(), _DURATION_UNITS, strict=True) if part)
