"""`kubectl dtj history` shows what was recorded of jobs, also of those that are gone, and exports their curves."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from trainmaster.cli.commands import module_of
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.file_names import complete_path
from trainmaster.cli.history.opening import HistoryOptions, OpenHistory, open_history
from trainmaster.cli.job_names import plain_name
from trainmaster.cli.output import Output
from trainmaster.cli.program import Command, Part
from trainmaster.cli.terminal import say, terminal_width

app = Part()

# `history serve` is the history's own process, in a module of its own. `history dtj/serve` shows a job of that name.
SERVE, SERVER = "serve", "history-server"
PANEL = "History"
EXPORT = "Export"


def _complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of recorded jobs for tab completion."""
    from trainmaster.cli.connection_values import recorded_names

    return recorded_names(ctx, incomplete)


def _complete_format(incomplete: str) -> list[str]:
    from trainmaster.cli.history.exporting import FORMATS

    return [each for each in FORMATS if each.startswith(incomplete)]


def _known_format(value: str | None) -> str | None:
    from trainmaster.cli.history.exporting import FORMATS

    if value is not None and value not in FORMATS:
        raise typer.BadParameter(f"{value!r} is not known; use {' or '.join(FORMATS)}")
    return value


class _History(Command):
    """_History has a command beneath it, at the place of a job's name."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Returns the context of what is to run: this command, or the one beneath it."""
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
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of the job; without, all that were recorded.",
            autocompletion=_complete_name,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces; without a name.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="At most so many jobs, the newest; 0 is all.")
    ] = 100,
    uid: Annotated[str | None, typer.Option("--uid", metavar="UID", help="An earlier job of that name.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="What was kept of this attempt.")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the job's curves to FILE.csv, .json or .parquet; - is stdout.",
            rich_help_panel=EXPORT,
            autocompletion=complete_path,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="csv|json|parquet",
            help="The format, where FILE's name doesn't say it.",
            rich_help_panel=EXPORT,
            callback=_known_format,
            autocompletion=_complete_format,
        ),
    ] = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="The figures of each rank, a row each.", rich_help_panel=EXPORT)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there.", rich_help_panel=EXPORT)
    ] = False,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="URL|FILE",
            help="The history; default: TRAINMASTER_HISTORY, or the cluster's.",
            rich_help_panel=PANEL,
            autocompletion=complete_path,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="Bearer token for the history; default: the kubeconfig's.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    authority: Annotated[
        str | None,
        typer.Option(
            "--history-ca",
            metavar="FILE",
            help="Authority of a history behind https; default: the system's.",
            rich_help_panel=PANEL,
            autocompletion=complete_path,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Show recorded jobs, also those that are gone; with a name its attempts, time and curves.

    `history bert --attempt 2` shows the evidence of an attempt, `history bert --export bert.parquet` writes the curves
    to a file (docs/history-exports.md). `history serve` is the process that records; a job of that name is `dtj/serve`.
    """
    _require_possible(name, {"--all-namespaces": everywhere}, only_listed=True)
    of_a_job = {"--uid": uid, "--attempt": attempt, "--export": export}
    _require_possible(name, of_a_job, only_listed=False)
    if export is None:
        for option, given in {"--format": format, "--ranks": ranks, "--force": force}.items():
            if given:
                raise typer.BadParameter("goes with --export FILE", param_hint=option)
    elif output is not None or attempt is not None:
        option = "--output" if output is not None else "--attempt"
        raise typer.BadParameter("doesn't go with --export, which has --format", param_hint=option)
    else:
        format = _export_format(export, format, force=force)
    opened = open_history(connection, HistoryOptions(history, token, authority))
    if name is None:
        _show_list(opened, None if everywhere else opened.namespace, limit, output)
    elif export is not None and format is not None:
        _export(opened, name, uid, export, format, ranks=ranks)
    elif attempt is not None:
        _show_attempt(opened, name, uid, attempt, output)
    else:
        _show_job(opened, name, uid, output)


def _require_possible(name: str | None, options: Mapping[str, Any], *, only_listed: bool) -> None:
    """Raises BadParameter for options that go with a list alone, or with a name alone."""
    for option, given in options.items():
        if given and (name is not None) == only_listed:
            why = "a job is in one namespace; name that with --namespace" if only_listed else "needs the name of a job"
            raise typer.BadParameter(why, param_hint=option)


def _export_format(file: str, format: str | None, *, force: bool) -> str:
    """Returns the format of an export, before anything is asked for it. Raises BadParameter, ClientError."""
    from trainmaster.cli.history import exporting

    found = exporting.format_of(file, format)
    exporting.require_room(file, force=force)
    if found == "parquet":
        exporting.require_parquet()
    return found


def _show_list(opened: OpenHistory, namespace: str | None, limit: int, output: str | None) -> None:
    from trainmaster.cli.history.listing import job_table, recorded_jobs
    from trainmaster.cli.output import print_value, qualified
    from trainmaster.client.blocking import run

    jobs, more = run(recorded_jobs(opened.reader, namespace, limit))
    if output == "name":
        for each in dict.fromkeys(job["name"] for job in jobs):
            say(qualified(each))
    elif output in ("json", "yaml"):
        print_value({"kind": "RecordedJobList", "items": jobs}, output)
    elif jobs:
        from trainmaster.cli.console import SafeConsole

        console = SafeConsole()
        console.print(job_table(jobs, namespaces=namespace is None, wide=output == "wide"), soft_wrap=True)
    else:
        where = "any namespace" if namespace is None else f"namespace {namespace}"
        say(f"No jobs were recorded in {where}.", error=True)
    if more:
        say(f"Only the newest {limit} are shown: --limit 0 shows all.", error=True)


def _show_job(opened: OpenHistory, name: str, uid: str | None, output: str | None) -> None:
    from trainmaster.cli.output import print_value, qualified
    from trainmaster.client.blocking import run

    job = run(opened.reader.job(opened.namespace, name, uid=uid))
    if output == "name":
        say(qualified(job["name"]))
    elif output in ("json", "yaml"):
        print_value(job, output)
    else:
        from trainmaster.cli.console import SafeConsole
        from trainmaster.cli.history.listing import job_table
        from trainmaster.cli.history.page import job_page

        console = SafeConsole()
        if output == "wide":
            console.print(job_table([job], wide=True), soft_wrap=True)
            return
        series = run(opened.reader.series(opened.namespace, name, uid=job["uid"]))
        for part in job_page(job, series, terminal_width()):
            console.print(part, crop=False)


def _show_attempt(opened: OpenHistory, name: str, uid: str | None, number: int, output: str | None) -> None:
    from trainmaster.cli.evidence import as_json, print_page
    from trainmaster.cli.history.attempt import TAIL_LINES, attempt_lines, evidence_of, log_lines
    from trainmaster.cli.output import print_value
    from trainmaster.client import ClientError, JobNotFound
    from trainmaster.client.blocking import run

    reader, namespace = opened.reader, opened.namespace
    job = run(reader.job(namespace, name, uid=uid))
    attempt = next((each for each in job["attempts"] if each["attempt"] == number), None)
    if attempt is None:
        numbers = [each["attempt"] for each in job["attempts"]]
        there = f"{numbers[0]} to {numbers[-1]} were recorded" if numbers else "none was recorded"
        raise JobNotFound(f"Job {name} has no attempt {number}: {there}")
    evidence = evidence_of(run(reader.evidence(namespace, name, uid=job["uid"])), number)
    if output is not None:
        if output not in ("json", "yaml"):
            raise typer.BadParameter("an attempt is printed as json or yaml", param_hint="--output")
        print_value([] if evidence is None else as_json([evidence], None), output)
        return
    print_page(attempt_lines(evidence, attempt))
    if attempt is job["attempts"][-1]:
        # What is kept of the logs is what was printed last; of the other attempts their evidence has it.
        try:
            print_page(log_lines(run(reader.logs(namespace, name, uid=job["uid"], tail=TAIL_LINES))))
        except ClientError as error:
            say(f"The logs can't be shown: {error}", error=True)


def _export(opened: OpenHistory, name: str, uid: str | None, file: str, format: str, *, ranks: bool) -> None:
    from trainmaster.cli.history.exporting import STDOUT, export
    from trainmaster.client.blocking import run
    from trainmaster.client.history import curves, rank_figures

    reader, namespace = opened.reader, opened.namespace
    # Which job that name means is decided once, and one that isn't there is an error and no empty file.
    uid = run(reader.job(namespace, name, uid=uid))["uid"]
    left_out = 0
    if ranks:
        columns, left_out = run(rank_figures(reader, namespace, name, uid=uid))
    else:
        columns = run(curves(reader, namespace, name, uid=uid))
    export(columns, file, format)
    if left_out:
        say(f"{left_out} ranks are left out: the history shows no more of so many at once.", error=True)
    if file != STDOUT:
        say(f"{file}: {len(columns['at'])} rows, {len(columns)} columns")
