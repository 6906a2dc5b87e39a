"""`trainmaster history serve` records what operators send about jobs, and shows jobs to viewers who may see them."""

from __future__ import annotations

import inspect
from dataclasses import Field
from typing import Annotated, Any, get_args, get_type_hints

import typer

from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say
from trainmaster.history.settings import HistorySettings
from trainmaster_operator.api.options import InvalidSetting, Option, options_of

_OPTIONS = options_of(HistorySettings)

app = Part(help="Keep a history of jobs.")


@app.callback()
def history() -> None:
    """Keep a history of jobs."""


def serve(**given: Any) -> None:
    """Record what an operator sends, and answer viewers, until SIGTERM or Ctrl-C.

    It has no rights in the cluster: the API server decides by each viewer's own token.
    """
    values: dict[str, Any] = {}
    for setting, option in _OPTIONS:
        if given[setting.name] in (None, ""):
            continue
        try:
            values[setting.name] = option.parse(given[setting.name])
        except InvalidSetting as error:
            raise typer.BadParameter(f"--{option.name}: {error}") from error
    raise typer.Exit(_run(HistorySettings(**values)))


def _parameter(setting: Field[Any], option: Option) -> inspect.Parameter:
    """Returns the function parameter that typer turns into a setting's option."""
    annotation, default, help = get_type_hints(HistorySettings)[setting.name], setting.default, option.help
    if option.default_text:
        annotation, default = str | None, None
        help = f"{help.removesuffix('.')}; default: {option.default_text}."
    info = typer.Option(
        f"--{option.name}",
        envvar=list(option.variables) or None,
        help=help,
        min=option.least,
        max=option.most,
        hidden=option.hidden,
        case_sensitive="DEBUG" not in get_args(annotation),
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(setting.name, kind, default=default, annotation=Annotated[annotation, info])


# Typer reads the options from the signature and the help from the docstring.
vars(serve)["__signature__"] = inspect.Signature([_parameter(*each) for each in _OPTIONS])
app.command("serve")(serve)


def _run(settings: HistorySettings) -> int:
    import asyncio
    import gc

    from trainmaster.client.errors import ClientError
    from trainmaster.history.schema import UnusableHistory
    from trainmaster.history.server import run_history
    from trainmaster_operator.serving import stop_event
    from trainmaster_operator.serving.logs import set_up

    set_up(settings.log_format, settings.log_level)
    gc.freeze()

    async def main() -> None:
        await run_history(settings, stop_event())

    try:
        asyncio.run(main())
    except (UnusableHistory, ClientError) as error:
        say(f"trainmaster history: {error}", error=True)
        return 1
    return 0
