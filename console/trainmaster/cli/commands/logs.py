"""`kubectl dtj logs` prints the output of all ranks of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import JobName, duration_option, find_job
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.program import Part

app = Part()


@app.command()
@connected
def logs(
    connection: Connection,
    name: JobName,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", help="Show only this rank's lines; can be repeated.", min=0)
    ] = None,
    worker: Annotated[
        list[int] | None, typer.Option("--worker", help="Show only this worker's lines; can be repeated.", min=0)
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Show only this attempt's lines.", min=1)] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Show only the previous attempt's lines.")] = False,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Show only the rank that failed first, in --attempt or the newest failed."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print further lines as they come, until the job has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Show only this many last lines of each worker.", min=0)
    ] = None,
    since: Annotated[
        float | None, duration_option("Show only newer lines: seconds, or 30s, 5m, 2h.", "--since")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time of each line (UTC).")] = False,
    prefix: Annotated[
        bool | None,
        typer.Option("--prefix/--no-prefix", help="Print the worker before every line, or neither rank nor worker."),
    ] = None,
) -> None:
    """Print the output of all ranks, merged by time, also after the pods are gone.

    With -f it continues through restarts, replaced pods, suspend and resume. It reports on stderr what it waits for,
    which lines are lost and how the job ended.
    """
    import time

    from trainmaster.cli.logs import attempt_before, print_logs
    from trainmaster.client.logs import Selection

    if previous and attempt is not None:
        raise typer.BadParameter(
            "it names an attempt as --attempt does; leave one of them out", param_hint="--previous"
        )
    if failed and (follow or rank or worker):
        given = "--follow" if follow else "--rank" if rank else "--worker"
        raise typer.BadParameter(f"it shows the log of the rank that failed; leave {given} out", param_hint="--failed")
    jobs = connection.client()
    job = find_job(jobs, name)
    selection = Selection(
        workers=frozenset(worker) if worker else None,
        ranks=frozenset(rank) if rank else None,
        attempt=attempt_before(job) if previous else attempt,
        since=None if since is None else time.time() - since,
        tail=tail,
    )
    print_logs(jobs, job, selection, prefix=prefix, timestamps=timestamps, failed=failed, follow=follow)
