"""Declares a setting of a process once, as a dataclass field with name, unit, default and reason.

The command line, environment variables and tables in docs/ are generated from the fields with an `Option`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import Any, Literal

LogFormat = Literal["json", "text"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class InvalidSetting(Exception):
    """Raised if the text of a setting is invalid. The message describes valid text."""


@dataclass(frozen=True)
class Option:
    """Option declares a setting: `--name` on the command line, or the variable `TRAINMASTER_NAME`."""

    # A sentence with the unit, for --help and the docs.
    help: str
    # The option's name without its dashes. By default it is the field's name.
    name: str = ""
    short: str = ""
    # The variable's name without `TRAINMASTER_`. If empty, it is derived from the option's name.
    variable: str = ""
    # Further variables that are read if the first one isn't set.
    more_variables: tuple[str, ...] = ()
    # The range of a number.
    least: float | None = None
    most: float | None = None
    # Parses the given value.
    parse: Callable[[Any], Any] = lambda given: given
    # The default in words, if it depends on other settings.
    default_text: str = ""
    # Whether the option is only for benchmarks and tests. If so, it has no variable and --help doesn't show it.
    hidden: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Returns the option's environment variables, in order of precedence."""
        first = self.variable or self.name.replace("-", "_").upper()
        return () if self.hidden else (f"TRAINMASTER_{first}", *self.more_variables)


def option(help: str, **how: Any) -> dict[str, Option]:
    """Returns the metadata of a dataclass field that is an option."""
    return {"option": Option(help, **how)}


def options_of(settings: type) -> list[tuple[Field[Any], Option]]:
    """Returns the fields of a dataclass that are options, and their options with names."""
    declared = [(field, field.metadata["option"]) for field in fields(settings) if "option" in field.metadata]
    return [(field, replace(found, name=found.name or field.name.replace("_", "-"))) for field, found in declared]
