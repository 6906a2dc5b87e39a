"""`kubectl dtj wait` waits until jobs have ended or reached a phase."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.durations import seconds
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


def wait_targets() -> list[str]:
    """Returns all values of `wait --for`."""
    from typing import get_args

    from trainmaster_operator.api.v1alpha1 import Phase

    return ["finished", *map(str.lower, get_args(Phase))]


def complete_phase(incomplete: str) -> list[str]:
    """Returns the values of `wait --for` with the given beginning, for tab completion."""
    return [each for each in wait_targets() if each.startswith(incomplete.lower())]


@app.command()
@connected
def wait(
    connection: Connection,
    names: JobNames,
    phase: Annotated[
        str,
        typer.Option(
            "--for", help="Wait for finished, running, or a phase such as Suspended.", autocompletion=complete_phase
        ),
    ] = "finished",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="Wait at most this long: seconds, or 30s, 5m.", parser=seconds, metavar="<time>"
        ),
    ] = None,
) -> None:
    """Wait until jobs have ended, or are in a phase.

    The exit code is 0 if all succeeded or are in that phase, 1 if one ended otherwise, 3 at the timeout.
    """
    from trainmaster.client.view import view_of

    if phase.lower() not in wait_targets():
        kubectls = "; kubectl wait has conditions and delete" if "=" in phase or phase.lower() == "delete" else ""
        targets = ", ".join(wait_targets())
        raise typer.BadParameter(f"{phase!r} is no phase; use one of {targets}{kubectls}", param_hint="--for")
    jobs = connection.client()
    wanted = phase.capitalize()
    deadline = None if timeout is None else time.monotonic() + timeout
    missed: list[str] = []

    def one(name: str) -> None:
        find_job(jobs, name)
        left = timeout if deadline is None or len(names) == 1 else max(0.0, deadline - time.monotonic())
        job = jobs.wait(
            name,
            until=lambda job: job.finished or (wanted != "Finished" and job.phase == wanted),
            timeout=left,
        )
        say(view_of(job.raw).outcome)
        if job.phase != wanted and not (job.phase == "Succeeded" and wanted in ("Finished", "Running")):
            missed.append(name)

    for_each(names, one)
    if missed:
        raise typer.Exit(1)
