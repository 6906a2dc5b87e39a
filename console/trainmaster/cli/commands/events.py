"""`kubectl dtj events` shows the events of jobs, their StatefulSets and their pods."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import Everywhere, find_job, name_argument, require_one
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import ObjectOutput
from trainmaster.cli.program import Part

app = Part()

TYPES = ("Normal", "Warning")


@app.command()
@connected
def events(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: all jobs.")] = None,
    everywhere: Everywhere = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            help="Show only events of these types: Normal, Warning.",
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

    require_one(name, everywhere)
    wanted = [each.strip().capitalize() for each in types.split(",")] if types else []
    for each in wanted:
        if each not in TYPES:
            raise typer.BadParameter(f"{each!r} is no type of event; use {' or '.join(TYPES)}", param_hint="--types")
    jobs = connection.client()
    job = None if name is None else find_job(jobs, name)
    show_events(jobs, job, wanted, all_namespaces=everywhere, watch=watch, output=output)
