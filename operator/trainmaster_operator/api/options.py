"""Declares a setting of a process once, as a dataclass field with name, unit, default and reason.

The command line, environment variables and tables in docs/ are generated from the fields with an `Option`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LogFormat = Literal["json", "text"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class InvalidSetting(Exception):
    """Raised if the text of a setting is invalid. The message describes valid text."""


@dataclass(frozen=True)
class Option:
    """Option declares a setting: `--name` on the command line, or the variable `TRAINMASTER_NAME`."""

    # A sentence with the unit, for --help and the docs.
    help: str
    # The option's name if it differs from the field's name, such as the singular for a repeatable option.
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


OPTION = "option"


def option(help: str, **how: Any) -> dict[str, Option]:
    """Returns the metadata of a dataclass field that is an option."""
    return {OPTION: Option(help, **how)}


def options_of(settings: type[DataclassInstance]) -> list[tuple[Field[Any], Option]]:
    """Returns the fields of a dataclass that are options, with their options."""
    return [(setting, setting.metadata[OPTION]) for setting in fields(settings) if OPTION in setting.metadata]


def option_name(setting: Field[Any], option: Option) -> str:
    """Returns the option's name, without its dashes."""
    return option.name or setting.name.replace("_", "-")


def variables(setting: Field[Any], option: Option) -> tuple[str, ...]:
    """Returns an option's environment variables, in order of precedence."""
    if option.hidden:
        return ()
    first = option.variable or option_name(setting, option).replace("-", "_").upper()
    return (f"TRAINMASTER_{first}", *option.more_variables)
