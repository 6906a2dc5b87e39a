"""`kubectl dtj history` shows the records of jobs, even of deleted ones, and exports their curves."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from trainmaster.cli.arguments import Everywhere, name_argument
from trainmaster.cli.commands import module_of
from trainmaster.cli.connection import Connection, complete_path, connected
from trainmaster.cli.history import FORMATS, HistoryOptions, open_history, recorded_names
from trainmaster.cli.output import Output, format_option
from trainmaster.cli.program import Command, Part

app = Part()

# `history serve` runs the server (commands/history_server.py); `history dtj/serve` shows the job named serve.
SERVE, SERVER = "serve", "history-server"
PANEL = "History"
EXPORT = "Export"


class _History(Command):
    """_History is a command that takes a job's name or a subcommand."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Returns the context of this command, or of its subcommand."""
        runs: Any = super() if args[:1] != [SERVE] else self.server()
        return runs.make_context(info_name, args, parent, **extra)

    def server(self) -> Any:
        """Returns the group with `serve`."""
        return typer.main.get_command(import_module(module_of(SERVER)).app)


@app.command("history", cls=_History)
@connected
def show_history(
    connection: Connection,
    name: Annotated[
        str | None, name_argument("Name of the job; default: all recorded jobs.", complete=recorded_names)
    ] = None,
    everywhere: Everywhere = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="List at most N jobs, the newest; 0: all.")
    ] = 100,
    uid: Annotated[str | None, typer.Option("--uid", metavar="UID", help="Show the job with this uid.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Show the evidence of this attempt.")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the curves to FILE.csv, .json or .parquet; - is stdout.",
            rich_help_panel=EXPORT,
            autocompletion=complete_path,
        ),
    ] = None,
    format: Annotated[
        str | None,
        format_option(
            "--format", formats=FORMATS, help="Set the format of an export; default: FILE's suffix.", panel=EXPORT
        ),
    ] = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Export each rank's figures, a row each.", rich_help_panel=EXPORT)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.", rich_help_panel=EXPORT)] = False,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="URL",
            help="Read this history; default: TRAINMASTER_HISTORY or the cluster's.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="Send this bearer token; default: the kubeconfig's.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--service-account",
            metavar="[NAMESPACE/]NAME",
            help="Read as this account, if the kubeconfig has no token.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    authority: Annotated[
        str | None,
        typer.Option(
            "--history-ca",
            metavar="FILE",
            help="Trust this authority for https; default: the system's.",
            rich_help_panel=PANEL,
            autocompletion=complete_path,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Show recorded jobs, even deleted ones; with NAME attempts, time and curves.

    `history bert --attempt 2` shows the evidence of an attempt, `history bert --export bert.parquet` writes the curves
    to a file (docs/history-exports.md). `history serve` runs the server; a job of that name is `dtj/serve`.
    """
    from trainmaster.cli.history.showing import export_format, export_job, show_attempt, show_job, show_list

    _require_possible(name, {"--all-namespaces": everywhere}, only_listed=True)
    of_a_job = {"--uid": uid, "--attempt": attempt, "--export": export}
    _require_possible(name, of_a_job, only_listed=False)
    if export is None:
        for option, given in {"--format": format, "--ranks": ranks, "--force": force}.items():
            if given:
                raise typer.BadParameter("goes with --export FILE", param_hint=option)
    elif output is not None or attempt is not None:
        option, why = ("--output", "has --format") if output is not None else ("--attempt", "writes all attempts")
        raise typer.BadParameter(f"doesn't go with --export, which {why}", param_hint=option)
    else:
        format = export_format(export, format, force=force)
    if attempt is not None and output not in (None, "json", "yaml"):
        raise typer.BadParameter("an attempt is printed as json or yaml", param_hint="--output")
    opened = open_history(connection, HistoryOptions(history, token, account, authority))
    if name is None:
        show_list(opened, None if everywhere else opened.namespace, limit, output)
    elif export is not None and format is not None:
        export_job(opened, name, uid, export, format, ranks=ranks)
    elif attempt is not None:
        show_attempt(opened, name, uid, attempt, output)
    else:
        show_job(opened, name, uid, output)


def _require_possible(name: str | None, options: Mapping[str, Any], *, only_listed: bool) -> None:
    """Raises BadParameter for a list's option with a job's name, or a job's option without a name."""
    for option, given in options.items():
        if given and (name is not None) == only_listed:
            why = "a job is in one namespace; name that with --namespace" if only_listed else "needs the name of a job"
            raise typer.BadParameter(why, param_hint=option)
