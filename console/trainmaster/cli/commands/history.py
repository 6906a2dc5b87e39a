"""`kubectl dtj history` shows the records of jobs, even of deleted ones, and exports their curves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.arguments import Everywhere, name_argument, require_one
from trainmaster.cli.commands import module_of
from trainmaster.cli.connection import Connection, completions, connected, path_option
from trainmaster.cli.history import FORMATS
from trainmaster.cli.output import Output, format_option
from trainmaster.cli.program import Command, Part

if TYPE_CHECKING:
    from trainmaster.client.history import HistoryReader

app = Part()

# `history serve` runs the server (commands/history_server.py); `history dtj/serve` shows the job named serve.
SERVE, SERVER = "serve", "history-server"
_EXPORT: dict[str, Any] = {"rich_help_panel": "Export"}
_SOURCE: dict[str, Any] = {"rich_help_panel": "History"}


def open_history(
    connection: Connection, address: str | None, token: str | None, account: str | None, authority: str | None
) -> tuple[HistoryReader, str]:
    """Opens the history that the options select, and returns its reader and the namespace.

    Raises ClientError and BadParameter. Without an address, TRAINMASTER_HISTORY or the cluster selects the history.
    """
    from trainmaster.client.history import blocking_history, find_history

    limit, server = connection.answer_seconds(), connection.server()
    found = find_history(address, server, token=token, account=account, authority=authority)
    return blocking_history(found, seconds=limit), connection.namespace or server.namespace


def _complete_name(ctx: typer.Context) -> list[str]:
    """Returns the names of the namespace's recorded jobs, newest first."""
    from trainmaster.client.blocking import run

    def read() -> list[str]:
        options = (ctx.params.get(name) for name in ("history", "token", "account", "authority"))
        reader, namespace = open_history(Connection.of(ctx), *options)
        return list(dict.fromkeys(job["name"] for job in run(reader.jobs(namespace))["items"]))

    return completions(read)


def _source(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, **_SOURCE)


class _History(Command):
    """_History is a command that takes a job's name or a subcommand."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        serve = args[:1] == [SERVE]
        runs: Any = typer.main.get_command(import_module(module_of(SERVER)).app) if serve else super()
        return runs.make_context(info_name, args, parent, **extra)


@app.command("history", cls=_History)
@connected
def show_history(
    connection: Connection,
    name: Annotated[
        str | None, name_argument("Name of the job; default: all recorded jobs.", complete=_complete_name)
    ] = None,
    everywhere: Everywhere = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="List at most N jobs, the newest; 0: all.")] = 100,
    uid: Annotated[str | None, typer.Option(metavar="UID", help="Show the job with this uid.")] = None,
    attempt: Annotated[int | None, typer.Option(metavar="N", min=1, help="Show the evidence of this attempt.")] = None,
    export: Annotated[
        str | None,
        path_option(metavar="FILE", help="Write the curves to FILE.csv, .json or .parquet; - is stdout.", **_EXPORT),
    ] = None,
    format: Annotated[
        str | None, format_option(FORMATS, "Set the format of an export; default: FILE's suffix.", **_EXPORT)
    ] = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="Export each rank's figures, a row each.", **_EXPORT)] = False,
    systems: Annotated[
        bool, typer.Option("--systems", help="Export figures of each worker and GPU, a row each.", **_EXPORT)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.", **_EXPORT)] = False,
    history: Annotated[
        str | None, _source("--history", "URL", "Read this history; default: TRAINMASTER_HISTORY or the cluster's.")
    ] = None,
    token: Annotated[
        str | None, _source("--token", "TOKEN", "Send this bearer token; default: the kubeconfig's.")
    ] = None,
    account: Annotated[
        str | None,
        _source("--service-account", "[NAMESPACE/]NAME", "Read as this account, if the kubeconfig has no token."),
    ] = None,
    authority: Annotated[
        str | None,
        path_option(
            "--history-ca", metavar="FILE", help="Trust this authority for https; default: the system's.", **_SOURCE
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Show recorded jobs, even deleted ones; with NAME attempts, time and curves.

    `history bert --attempt 2` shows the evidence of an attempt, `history bert --export bert.parquet` writes the curves
    to a file (docs/history-exports.md). `history serve` runs the server; a job of that name is `dtj/serve`.
    """
    from trainmaster.cli.history.showing import export_format, export_job, show_attempt, show_job, show_list

    require_one(name, everywhere)
    for option, given in {"--uid": uid, "--attempt": attempt, "--export": export}.items():
        if given and name is None:
            raise typer.BadParameter("needs the name of a job", param_hint=option)
    if export is None:
        for option, given in {"--format": format, "--ranks": ranks, "--systems": systems, "--force": force}.items():
            if given:
                raise typer.BadParameter("goes with --export FILE", param_hint=option)
    elif output is not None or attempt is not None:
        option, why = ("--output", "has --format") if output is not None else ("--attempt", "writes all attempts")
        raise typer.BadParameter(f"doesn't go with --export, which {why}", param_hint=option)
    else:
        if ranks and systems:
            raise typer.BadParameter("doesn't go with --ranks; export one after the other", param_hint="--systems")
        format = export_format(export, format, force=force)
    if attempt is not None and output not in (None, "json", "yaml"):
        raise typer.BadParameter("an attempt is printed as json or yaml", param_hint="--output")
    reader, namespace = open_history(connection, history, token, account, authority)
    if name is None:
        show_list(reader, None if everywhere else namespace, limit, output)
    elif export is not None and format is not None:
        export_job(reader, namespace, name, uid, export, format, ranks=ranks, systems=systems)
    elif attempt is not None:
        show_attempt(reader, namespace, name, uid, attempt, output)
    else:
        show_job(reader, namespace, name, uid, output)
