"""`evidence` shows what was kept of failed attempts, and `stacks` the current stacks of a running job's ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import JobName, duration_option, find_job, require_attempt, require_index
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import ObjectOutput, print_value
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()

Rank = Annotated[int | None, typer.Option("--rank", help="Show only this rank, with all its stacks.", min=0)]


@app.command("evidence")
@connected
def evidence(
    connection: Connection,
    name: JobName,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Show only this attempt.", min=1)] = None,
    rank: Rank = None,
    output: ObjectOutput = None,
) -> None:
    """Show what was kept of failed attempts: who, why, stacks, log ends.

    It works after the pods are gone, too. Without --rank, only the failed rank's stacks are complete.
    """
    from trainmaster.cli.evidence import as_json, evidence_lines, print_page

    jobs = connection.client()
    job = find_job(jobs, name)
    if attempt is not None:
        require_attempt(job, attempt)
    if rank is not None:
        require_index(job, "rank", rank)
    found = [one for one in jobs.evidence(name) if attempt in (None, one.attempt)]
    if output is not None:
        print_value(as_json(found, rank), output)
    elif found:
        print_page(evidence_lines(found, rank))
    else:
        which = "" if attempt is None else f" of attempt {attempt}"
        say(f"No evidence{which} was kept of job {name}: it is written when an attempt fails.", error=True)


@app.command("stacks")
@connected
def stacks(
    connection: Connection,
    name: JobName,
    rank: Rank = None,
    timeout: Annotated[float, duration_option()] = "15s",  # type: ignore[assignment]
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
