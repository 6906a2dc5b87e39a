"""A setting of a process is a field of a dataclass, declared once: its name, unit, default and why.

The command line, the environment's variables and the tables in docs/ are made from the fields that have an `Option`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LogFormat = Literal["json", "text"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class InvalidSetting(Exception):
    """A setting's text can't be read; one sentence says what it should be."""


@dataclass(frozen=True)
class Option:
    """Declares how a setting is given: as `--name` on the command line, or by the variable `TRAINMASTER_NAME`."""

    # A sentence with the unit, for --help and docs.
    help: str
    # Of the option, where it isn't the field's own: the singular of what may be given repeatedly.
    name: str = ""
    short: str = ""
    # Without `TRAINMASTER_`; the option's name where it is empty.
    variable: str = ""
    # Further variables that are read where the first isn't set.
    more_variables: tuple[str, ...] = ()
    # The range of a number.
    least: float | None = None
    most: float | None = None
    # The value that is meant by what was given.
    parse: Callable[[Any], Any] = lambda given: given
    # What stands for the default, where that depends on other settings.
    default_text: str = ""
    # For benchmarks and tests: neither in --help nor a variable.
    hidden: bool = False


OPTION = "option"


def option(help: str, **how: Any) -> dict[str, Option]:
    """Returns the metadata of a field that is an option."""
    return {OPTION: Option(help, **how)}


def option_of(metadata: Mapping[str, Any]) -> Option | None:
    """Returns the option of a field with this metadata; None where the field isn't one."""
    found = metadata.get(OPTION)
    return found if isinstance(found, Option) else None
