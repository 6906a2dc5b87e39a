"""`kubectl dtj list` shows all jobs of a namespace, or of all, one a line."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import Output
from trainmaster.cli.program import Part

app = Part()


@app.command("list")
@connected
def list_jobs(
    connection: Connection,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces.")] = False,
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-l", metavar="LABELS", help="Only jobs with such labels: team=nlp,tier!=test."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show every change.")] = False,
    output: Output = None,
) -> None:
    """List jobs: phase, attempt, workers, progress."""
    from trainmaster.cli import listing

    jobs = connection.client()
    listing.show_jobs(jobs, all_namespaces=everywhere, selector=selector, watch=watch, output=output)
