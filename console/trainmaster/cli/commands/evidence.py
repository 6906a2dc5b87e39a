"""`logs`, `events`, `evidence` and `stacks` show a job's output, its events, its failures and its ranks' stacks."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import (
    Everywhere,
    JobName,
    duration_option,
    find_job,
    name_argument,
    require_attempt,
    require_index,
    require_one,
)
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.output import ObjectOutput, print_value
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()

TYPES = ("Normal", "Warning")
Rank = Annotated[int | None, typer.Option("--rank", help="Show only this rank, with all its stacks.", min=0)]


@app.command("evidence")
@connected
def evidence(
    connection: Connection,
    name: JobName,
    attempt: Annotated[int | None, typer.Option(help="Show only this attempt.", min=1)] = None,
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


@app.command("logs")
@connected
def logs(
    connection: Connection,
    name: JobName,
    rank: Annotated[list[int] | None, typer.Option(help="Show only this rank's lines; can be repeated.", min=0)] = None,
    worker: Annotated[
        list[int] | None, typer.Option(help="Show only this worker's lines; can be repeated.", min=0)
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Show only this attempt's lines.", min=1)] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Show only the previous attempt's lines.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Show only the rank that failed first, in --attempt or the newest failed.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print further lines as they come, until the job has ended.")
    ] = False,
    tail: Annotated[int | None, typer.Option(help="Show only this many last lines of each worker.", min=0)] = None,
    since: Annotated[
        float | None, duration_option("Show only newer lines: seconds, or 30s, 5m, 2h.", "--since")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the time of each line (UTC).")] = False,
    prefix: Annotated[
        bool | None, typer.Option(help="Print the worker before every line, or neither rank nor worker.")
    ] = None,
) -> None:
    """Print the output of all ranks, merged by time, also after the pods are gone.

    With -f it continues through restarts, replaced pods, suspend and resume. It reports on stderr what it waits for,
    which lines are lost and how the job ended.
    """
    import time

    from trainmaster.cli.logs import attempt_before, print_logs
    from trainmaster.client.log_reader import Selection

    if previous and attempt is not None:
        raise typer.BadParameter("names an attempt as --attempt does; leave one of them out", param_hint="--previous")
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


@app.command("events")
@connected
def events(
    connection: Connection,
    name: Annotated[str | None, name_argument("Name of the job; default: all jobs.")] = None,
    everywhere: Everywhere = False,
    types: Annotated[
        str | None,
        typer.Option(help="Show only events of these types: Normal, Warning.", autocompletion=lambda: list(TYPES)),
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
    show_events(jobs, job, wanted, everywhere=everywhere, watch=watch, output=output)
