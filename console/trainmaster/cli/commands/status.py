"""`kubectl dtj status` shows everything about one job; without a name it lists all, as `list` does."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import complete_job, find_job, plain_name
from trainmaster.cli.output import Output
from trainmaster.cli.program import Part

app = Part()


@app.command()
@connected
def status(
    connection: Connection,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the job; all jobs without.",
            autocompletion=complete_job,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces; without a name.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show every change, of one job until it has ended.")
    ] = False,
    output: Output = None,
) -> None:
    """Show where a job stands: attempt, workers, progress, failures."""
    from trainmaster.cli import listing

    if name is None:
        listing.show_jobs(connection.client(), all_namespaces=everywhere, watch=watch, output=output)
        return
    if everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")
    jobs = connection.client()
    listing.show_job(jobs, find_job(jobs, name), watch=watch, output=output)
