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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show every change.")] = False,
    output: Output = None,
) -> None:
    """List jobs: phase, attempt, workers, progress."""
    from trainmaster.cli import listing

    listing.show_jobs(connection.client(), all_namespaces=everywhere, watch=watch, output=output)
