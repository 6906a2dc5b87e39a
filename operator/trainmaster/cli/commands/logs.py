"""`kubectl dtj logs` prints the output of a job's workers."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import JobName, find_job
from trainmaster.cli.program import Part

app = Part()


@app.command()
@connected
def logs(
    connection: Connection,
    name: JobName,
    worker: Annotated[int | None, typer.Option("--worker", help="Only this worker's output.", min=0)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for output and print it as it comes, until the job has ended.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", help="Only the last lines of each worker.", min=0)] = None,
) -> None:
    """Print the output of a job's workers, also after the pods are gone.

    With -f it goes on through restarts, replaced pods, suspend and resume. What it waits for, and how the job ended, is
    on stderr.
    """
    from trainmaster.cli.following import Follower, print_logs

    jobs = connection.client()
    job = find_job(jobs, name)
    if follow:
        Follower(jobs, job, worker, tail).run()
    else:
        print_logs(jobs, job, worker, tail)
