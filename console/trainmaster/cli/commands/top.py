"""`kubectl dtj top` shows a job as it runs, or all that go on."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import complete_job, find_job, plain_name
from trainmaster.cli.program import Part

app = Part()


@app.command()
@connected
def top(
    connection: Connection,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the job; all that go on without.",
            autocompletion=complete_job,
            callback=plain_name,
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The jobs of all namespaces; without a name.")
    ] = False,
) -> None:
    """Show step, loss, speed, step time by rank, workers and events as they change; q leaves.

    Into a pipe it is one picture of now.
    """
    from trainmaster.cli.console import SafeConsole
    from trainmaster.cli.top import live

    if name is not None and everywhere:
        raise typer.BadParameter("a job is in one namespace; name that with --namespace", param_hint="--all-namespaces")
    jobs = connection.client()
    if name is not None:
        read = live.job_reading(jobs, find_job(jobs, name))
    else:
        read = live.jobs_reading(jobs, all_namespaces=everywhere)
    console = SafeConsole()
    if console.is_terminal:
        live.show(console, read)
        return
    if (draw := read()) is not None:
        console.print(draw())
