"""`kubectl dtj stacks` shows the current stacks of a running job's ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import JobName, find_job
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.durations import seconds
from trainmaster.cli.output import ObjectOutput, print_value
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def stacks(
    connection: Connection,
    name: JobName,
    rank: Annotated[int | None, typer.Option("--rank", help="Show only this rank, with all its stacks.", min=0)] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", help="Wait at most this long: seconds, or 30s, 5m.", parser=seconds, metavar="<time>"
        ),
    ] = "15s",  # type: ignore[assignment]
    output: ObjectOutput = None,
) -> None:
    """Show the stacks of all ranks of a running job, without stopping them.

    The main thread comes first. The exit code is 0 if all ranks have answered, 1 if some have not, 3 at the timeout.
    """
    from trainmaster.cli.evidence import missing_stacks, stacks_json, stacks_lines

    jobs = connection.client()
    find_job(jobs, name)
    found = jobs.stacks(name, timeout=timeout)
    sentences = missing_stacks(found, rank)
    if output is not None:
        # The printed object already lists the missing answers.
        print_value(stacks_json(found, rank), output)
    else:
        for line in stacks_lines(found, rank):
            say(line)
        for sentence in sentences:
            say(f"error: {sentence}", error=True)
    if sentences:
        raise typer.Exit(1)
