"""`kubectl dtj events` shows the events of jobs, their StatefulSets and their pods."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import complete_job, find_job, plain_name
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import ObjectOutput
from trainmaster.cli.program import Part

app = Part()

TYPES = ("Normal", "Warning")


def known_types(value: str | None) -> str | None:
    """Returns the event types as given, separated by commas. Raises BadParameter."""
    for each in (value or "").split(",") if value else ():
        if each.strip().capitalize() not in TYPES:
            raise typer.BadParameter(f"{each!r} is no type of event; use {' or '.join(TYPES)}")
    return value


@app.command()
@connected
def events(
    connection: Connection,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the job; default: all jobs.",
            autocompletion=complete_job,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show events of jobs in all namespaces; without a name.")
    ] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            help="Show only events of these types: Normal, Warning.",
            callback=known_types,
            autocompletion=lambda: list(TYPES),
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print new events as they come; for one job, until it has ended.")
    ] = False,
    output: ObjectOutput = None,
) -> None:
    """Show what happened to a job, its StatefulSets and its pods, oldest first."""
    from trainmaster.cli.events import show_events

    if name is not None and everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")
    jobs = connection.client()
    job = None if name is None else find_job(jobs, name)
    wanted = [each.strip().capitalize() for each in types.split(",")] if types else []
    show_events(jobs, job, wanted, all_namespaces=everywhere, watch=watch, output=output)
