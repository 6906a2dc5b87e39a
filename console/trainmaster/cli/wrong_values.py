"""A value that an option can't have is refused in a sentence of ours.

typer checks values by pydantic, and would print pydantic's words and all variables that the value may come from.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def reworded(error: typer.BadParameter) -> typer.BadParameter:
    """Returns the same error, with a sentence of ours where pydantic found what is wrong."""
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):
        error.message = _sentence(error.__cause__.errors(include_url=False)[0]) or error.message
        error.param_hint = _source(error.param)
    return error


def _sentence(detail: ErrorDetails) -> str | None:
    from trainmaster_operator.api.values import out_of_range, show

    shown, context = show(detail["input"]), detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_from_float":
            return f"{shown} is no whole number"
        case "float_parsing" | "finite_number":
            return f"{shown} is no number"
        case "bool_parsing":
            return f"{shown} is neither true nor false; use one of the two"
        case "greater_than_equal" | "less_than_equal":
            return f"{shown} {out_of_range(context)}"
        case "value_error":
            return str(context["error"]).removesuffix(".")
    return None


def _source(parameter: Any) -> str:
    """Returns the flag, with the variable of the environment that is set and may be what is wrong."""
    variables = parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
    found = next((name for name in variables if name and os.environ.get(name)), None)
    flag = "/".join(parameter.opts)
    return flag if found is None else f"{flag} ({found})"
