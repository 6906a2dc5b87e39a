"""Makes a command's options from the fields of a settings dataclass, and the settings from the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from trainmaster_operator.api.options import InvalidSetting, Option, option_name, option_of, variables


def with_options(
    settings: type, *more: inspect.Parameter
) -> Callable[[Callable[[Mapping[str, Any]], None]], Callable[..., None]]:
    """Returns a decorator that makes a command from a function, which gets the values by parameter name.

    The options are in the order of the settings' fields. `more` follows the first of them.
    """
    parameters = [
        _parameter(setting, option, get_type_hints(settings)[setting.name])
        for setting in fields(settings)
        if (option := option_of(setting.metadata)) is not None
    ]

    def decorate(function: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            function(given)

        # Typer reads the options from the signature and the help from the docstring.
        vars(command)["__signature__"] = inspect.Signature([*parameters[:1], *more, *parameters[1:]])
        command.__doc__ = function.__doc__
        return command

    return decorate


def parse_settings(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields' given or default values. Raises typer.BadParameter."""
    values: dict[str, Any] = {}
    for setting in fields(settings):
        option = option_of(setting.metadata)
        if option is None or given[setting.name] in (None, ""):
            continue
        try:
            values[setting.name] = option.parse(given[setting.name])
        except InvalidSetting as error:
            raise typer.BadParameter(f"--{option_name(setting, option)}: {error}") from error
    return values


def _parameter(setting: Field[Any], option: Option, annotation: Any) -> inspect.Parameter:
    name, help, default = option_name(setting, option), option.help, setting.default
    flags = [f"--{name}", *([f"-{option.short}"] if option.short else [])]
    if get_origin(annotation) is tuple:
        annotation, default = list[str] | None, None
    elif annotation is bool:
        flags = [f"--{name}/--no-{name}"]
    elif default is None or option.default_text:
        annotation, default = str | None, None
    elif isinstance(default, int | float):
        # The command line can't express None, so only the default's type is accepted.
        annotation = type(default)
    if option.default_text:
        help = f"{help.removesuffix('.')}; default: {option.default_text}."
    info = typer.Option(
        *flags,
        envvar=list(variables(setting, option)) or None,
        help=help,
        min=option.least,
        max=option.most,
        hidden=option.hidden,
        case_sensitive="DEBUG" not in get_args(annotation),
    )
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )
