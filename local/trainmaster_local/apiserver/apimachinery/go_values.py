"""Formats values as Go's fmt does, for Kubernetes' errors, some of which use %v and some %#v."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from typing import Any


def plain(value: Any) -> str:
    """Returns a value as %v prints it: `map[a:1 b:[x y]]`."""
    if value is None:
        return "<nil>"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{name}:{plain(value[name])}" for name in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(plain, value)) + "]"
    return value if isinstance(value, str) else _scalar(value)


def syntax(value: Any) -> str:
    """Returns a value as %#v prints it: `map[string]interface {}{"a":1}`."""
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, dict):
        fields = ", ".join(f"{quoted(name)}:{syntax(value[name])}" for name in sorted(value))
        return f"map[string]interface {{}}{{{fields}}}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(syntax, value)) + "}"
    return quoted(value) if isinstance(value, str) else _scalar(value)


def type_of(value: Any) -> str:
    """Returns the type of a decoded JSON value as %T prints it."""
    names = {str: "string", bool: "bool", int: "int64", float: "float64", list: "[]interface {}"}
    return names.get(type(value), "<nil>" if value is None else "map[string]interface {}")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Returns a float64 in its shortest form, with an exponent below -4 and from 6 up."""
    exact = Decimal(repr(value)).normalize()
    sign, digits, exponent = exact.as_tuple()
    power = len(digits) + int(exponent) - 1
    if -4 <= power < 6:
        return f"{exact:f}"
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{'-' * sign}{first}{'.' * bool(rest)}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"


_LAYOUT = (
    (r"\d{4}", "2006"),
    ("-", "-"),
    (r"\d{2}", "01"),
    ("-", "-"),
    (r"\d{2}", "02"),
    ("T", "T"),
    (r"\d{2}", "15"),
    (":", ":"),
    (r"\d{2}", "04"),
    (":", ":"),
    (r"\d{2}(?:[.,]\d+)?", "05"),
    (r"Z|[+-]\d{2}:\d{2}", "Z07:00"),
)


def time_problem(text: str) -> str:
    """Returns why time.Parse refuses a time in RFC 3339; empty if it accepts the time."""
    rest = text
    prefix = f'parsing time {quoted(text)} as "2006-01-02T15:04:05Z07:00": cannot parse'
    for pattern, element in _LAYOUT:
        match = re.match(pattern, rest)
        if match is None:
            return f"{prefix} {quoted(rest)} as {quoted(element)}"
        rest = rest[match.end() :]
    if rest:
        return f"parsing time {quoted(text)}: extra text: {quoted(rest)}"
    try:
        datetime.datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return f"parsing time {quoted(text)}: day out of range"
    return ""


def json_type(value: Any) -> str:
    """Returns the type of a JSON value, as encoding/json's errors name it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "object" if isinstance(value, dict) else "array"
