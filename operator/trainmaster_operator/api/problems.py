"""A problem with a job is one sentence that names the field, the mistake in its value, and the remedy.

Misspelled names are compared with known names, ignoring case and word separators. If a value's type is wrong, the
remedy depends on the value. For example, only quoted values get the remedy to remove the quotes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.values import number, show


@dataclass(frozen=True)
class Problem:
    """Problem is one mistake in a job. `message` describes the mistake and the remedy."""

    # The path in Kubernetes' form, such as spec.workerGroups[1].name
    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.field}: {self.message}")


# Similarity (difflib's ratio) from which a known name was probably meant, and from which it was surely meant.
SIMILAR = 0.7
VERY_SIMILAR = 0.85
# Longer names are cut before the comparison. No known name is longer, and the time grows with the square of the length.
_LONGEST = 100


def plain(name: str) -> str:
    """Returns the form in which names are compared. It is equal for maxRestarts, max_restarts and MAX-RESTARTS."""
    return re.sub(r"[-_. \xa0]", "", name).casefold()


def nearest(name: str, known: Iterable[str], least: float = SIMILAR) -> str | None:
    """Returns the known name that was probably meant, whose similarity is at least `least`, or None."""
    meant = {plain(each): each for each in known}
    near = difflib.get_close_matches(plain(name)[:_LONGEST], meant, n=1, cutoff=least)
    return meant[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str, least: float = VERY_SIMILAR) -> str:
    """Returns the remedy that names the known name that was probably meant, or else the other remedy."""
    near = nearest(name, known, least)
    return otherwise if near is None else f"did you mean {near}?"


def either(names: Sequence[str]) -> str:
    """Returns the names as a text, such as `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def only_longer(name: str, known: Iterable[str]) -> str | None:
    """Returns the only known name that begins with `name` (OOMKilled for OOM), or None if several or none do."""
    given = plain(name)
    longer = [each for each in known if plain(each).startswith(given)]
    # A shorter beginning matches by chance.
    return longer[0] if len(longer) == 1 and len(given) >= 3 else None


# The expected kind of value and the general remedy, by the type of pydantic's error.
EXPECTED = {
    "int_type": ("a whole number", "write it without quotes and without a fraction"),
    "int_from_float": ("a whole number", "write it without a fraction"),
    "float_type": ("a number", "write it without quotes"),
    "finite_number": ("a finite number", "use one"),
    "string_type": ("text", "write it in quotes"),
    "bool_type": ("true or false", "write one of them without quotes"),
    "list_type": ("a list", "write its items in brackets or one a line after '-'"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), ("a mapping", "give its fields")),
}
_PLACEHOLDER = re.compile(
    r"\$\{.*\}|\$[A-Za-z_]+|<.*>|\{\{.*\}\}|%\w+%|TODO|FIXME|TBD|CHANGEME|\.\.\.|…", re.IGNORECASE
)
_TYPOGRAPHIC = re.compile("[\u201c\u201d\u201e\u201f\u2018\u2019\u201a\xab\xbb]")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)(?:s(?:ec)?)?)?", re.IGNORECASE)


def wrong_type(kind: str, value: Any, field: str = "", fields: Sequence[str] = (), *, remedy: str = "") -> str | None:
    """Returns the message for a value whose type is wrong, or None if pydantic's error `kind` is about something else.

    `field` is the field's name, and `fields` are the fields of the expected mapping. `remedy` replaces the general
    remedy.
    """
    if kind not in EXPECTED:
        return None
    wanted, general = EXPECTED[kind]
    if isinstance(value, str) and _PLACEHOLDER.fullmatch(value.strip()):
        return f"{show(value)} is a placeholder; put {wanted} there"
    if kind in ("int_type", "float_type") and "Seconds" in field and isinstance(value, str):
        return f"{show(value)} is not a number; give seconds as a number, such as {number(_seconds(value) or 5)}"
    return f"{show(value)} is not {wanted}; {remedy or _remedy(kind, value, fields) or general}"


def typographic_quotes(value: Any) -> str | None:
    """Returns the message for a text in typographic quotes, which YAML treats as part of the text."""
    if not isinstance(value, str) or not (_TYPOGRAPHIC.match(value) or _TYPOGRAPHIC.fullmatch(value[-1:])):
        return None
    return f"{show(value)} has typographic quotes, which YAML takes as text; write ' or \" instead"


def _remedy(kind: str, value: Any, fields: Sequence[str]) -> str | None:
    """Returns the remedy for a value of this kind, or None if the general remedy fits."""
    match kind:
        case "int_type" if isinstance(value, float):
            return "write it without a fraction"
        case "int_type" | "float_type":
            digits, example = (_INTEGER, 2) if kind == "int_type" else (_NUMBER, 0.5)
            is_quoted = isinstance(value, str) and digits.fullmatch(value)
            return "write it without quotes" if is_quoted else f"use one, such as {example}"
        case "string_type" if isinstance(value, list | dict) or value is None:
            return "give one text"
        case "bool_type" if not isinstance(value, str):
            return "use one of them"
    if EXPECTED[kind][0] != "a mapping":
        return None
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z]+:\S*", value):
        return "write a space after ':'"
    if isinstance(value, str) and len(fields) == 1 and len(value) < 40:
        return f"write {{{fields[0]}: {value}}}"
    return f"give its fields, such as {' and '.join(fields[:3])}" if fields else None


def _seconds(text: str) -> float | None:
    """Returns the seconds of a duration such as 300, 5s or 1h30m."""
    parts = _DURATION.fullmatch(text.replace(" ", "")) if len(text) < 20 else None
    if parts is None:
        return None
    return sum(float(part) * unit for part, unit in zip(parts.groups(), (86_400, 3_600, 60, 1), strict=True) if part)
