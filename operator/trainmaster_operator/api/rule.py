"""A rule is one sentence for Python and for the API server; `rules` has all there are, by their models.

`holds` sees the parsed model, `cel` is the same over `self`. Values that the sentence shows are read on either side by
`shown`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.problems import Problem

_VERBS = {"string": "%s", "int": "%d"}


@dataclass(frozen=True)
class Shown:
    """Shown is a value in a sentence: as a CEL expression of type string (or int), and from the parsed model."""

    cel: str
    get: Callable[[Any], Any]
    type: Literal["string", "int"] = "string"


@dataclass(frozen=True)
class Rule:
    """Rule is one rule of a model."""

    model: type[Any]
    # The field at fault, relative to the model; "" is the model itself.
    field: str
    cel: str
    holds: Callable[[Any], bool]
    # One sentence, with {names} of `shown` in it.
    message: str
    shown: Mapping[str, Shown] = dataclasses.field(default_factory=dict)
    # The API server's reason: Required for a field that must be there, Forbidden for one that may not be.
    reason: Literal["FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"] = "FieldValueInvalid"

    def problem(self, path: str, value: Any) -> Problem | None:
        """Returns what the rule says against a parsed model at a path."""
        if self.holds(value):
            return None
        values = {name: shown.get(value) for name, shown in self.shown.items()}
        at = f"{path}.{self.field}" if path and self.field else path or self.field
        return Problem(at, next(iter(values.values()), None), self.message.format(**values))

    def message_expression(self) -> str | None:
        """Returns the sentence as a CEL expression, where it shows values.

        Formatted and not joined with `+`: to the API server the text of a number, string(x), may have any length, so
        whatever is joined with it costs more than the budget and the whole definition is refused (cel-go
        checker/cost.go: AddString adds up the sizes, and none is known of a conversion's result).
        """
        if not self.shown:
            return None
        parts = re.split(r"\{(\w+)\}", self.message)
        verbs = [
            _VERBS[self.shown[part].type] if position % 2 else part.replace("%", "%%")
            for position, part in enumerate(parts)
        ]
        return f"{json.dumps(''.join(verbs))}.format([{', '.join(self.shown[part].cel for part in parts[1::2])}])"


@dataclass(frozen=True)
class TransitionRule:
    """TransitionRule keeps a field of the spec as it is once the job exists; only the API server sees both."""

    field: str
    message: str
    # The field may be absent in a stored object.
    optional: bool
    # A condition in CEL under which the field may change after all.
    unless: str = ""

    @property
    def cel(self) -> str:
        """Returns the rule in CEL; neither adding nor removing the field gets past it."""
        same = f"self.{self.field} == oldSelf.{self.field}"
        if not self.optional:
            return same
        has, had = f"has(self.{self.field})", f"has(oldSelf.{self.field})"
        same = f"({self.unless} || {same})" if self.unless else same
        return f"{has} == {had} && (!{has} || {same})"
