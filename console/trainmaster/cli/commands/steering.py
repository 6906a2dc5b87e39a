"""`suspend`, `resume`, `scale` and `restart` steer jobs, and `wait` waits for them. Each takes several jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from trainmaster.cli.arguments import JobNames, Timeout, find_job
from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import JobClient, TrainingJob

app = Part()


def _for_each(jobs: JobClient, names: Sequence[str], action: Callable[[str, TrainingJob], None]) -> None:
    """Runs an action for each job. If one job is refused, reports that and continues with the next, as kubectl does."""
    from trainmaster.client import ClientError, WaitTimeout

    refused: ClientError | None = None
    for name in names:
        try:
            action(name, find_job(jobs, name))
        except WaitTimeout:
            # The timeout applies to all jobs together, so the remaining ones aren't tried.
            raise
        except ClientError as error:
            if len(names) == 1:
                raise
            say(f"error: {error}", error=True)
            refused = error
    if refused is not None:
        raise typer.Exit(1) from refused


@app.command("suspend")
@connected
def suspend(connection: Connection, names: JobNames) -> None:
    """Stop jobs with a checkpoint, and free their resources.

    Resumed jobs continue from the checkpoint if its volume outlives the pods: a claim does, an emptyDir doesn't.
    """
    from trainmaster.client.sentences import KEEPING, lost_checkpoints

    jobs = connection.client()

    def one(name: str, job: TrainingJob) -> None:
        if job.to_be_suspended:
            say(f"{name}: already suspended")
            return
        jobs.suspend(name)
        say(f"{name}: suspending")
        if (lost := lost_checkpoints(job)) is not None:
            say(f"warning: {lost}; {KEEPING}", error=True)

    _for_each(jobs, names, one)


@app.command("resume")
@connected
def resume(connection: Connection, names: JobNames) -> None:
    """Resume suspended jobs, from their checkpoint if its volume has outlived the pods."""
    jobs = connection.client()

    def one(name: str, job: TrainingJob) -> None:
        jobs.resume(name)
        say(f"{name}: {'resuming' if job.to_be_suspended else f'is not suspended; it is {job.phase}'}")

    _for_each(jobs, names, one)


@app.command("scale")
@connected
def scale(
    connection: Connection, names: JobNames, workers: Annotated[int, typer.Option(help="New number of workers.", min=1)]
) -> None:
    """Change the number of workers."""
    jobs = connection.client()

    def one(name: str, job: TrainingJob) -> None:
        before = job.raw["spec"].get("workers")
        jobs.scale(name, workers)
        say(f"{name}: {workers} workers" + ("" if before is None else f", {before} before"))

    _for_each(jobs, names, one)


@app.command("restart")
@connected
def restart(connection: Connection, names: JobNames) -> None:
    """Restart all ranks of jobs in their pods.

    Scripts that save a checkpoint at SIGTERM do so first. This doesn't count against maxRestarts.
    """
    jobs = connection.client()

    def one(name: str, job: TrainingJob) -> None:
        jobs.restart(name)
        say(f"{name}: restarting")

    _for_each(jobs, names, one)


_TARGETS = "Wait for finished, running, or a phase such as Suspended."


def _targets() -> list[str]:
    from trainmaster_operator.api.v1alpha1 import Phase

    return ["finished", *map(str.lower, get_args(Phase))]


@app.command("wait")
@connected
def wait(
    connection: Connection,
    names: JobNames,
    phase: Annotated[str, typer.Option("--for", help=_TARGETS, autocompletion=_targets)] = "finished",
    timeout: Timeout = None,
) -> None:
    """Wait until jobs have ended, or are in a phase.

    The exit code is 0 if all succeeded or are in that phase, 1 if one ended otherwise, 3 at the timeout.
    """
    from trainmaster.cli.health import wait_for
    from trainmaster.client.view import view_of

    if phase.lower() not in _targets():
        kubectls = "; kubectl wait has conditions and delete" if "=" in phase or phase.lower() == "delete" else ""
        message = f"{phase!r} is no phase; use one of {', '.join(_targets())}{kubectls}"
        raise typer.BadParameter(message, param_hint="--for")
    jobs = connection.client()
    wanted = phase.capitalize()
    deadline = None if timeout is None else time.monotonic() + timeout
    missed: list[str] = []

    def reached(job: TrainingJob) -> bool:
        return job.finished or job.phase == wanted

    def one(name: str, job: TrainingJob) -> None:
        left = timeout if deadline is None or len(names) == 1 else max(0.0, deadline - time.monotonic())
        job = wait_for(jobs, job, reached, left)
        say(view_of(job.raw).outcome)
        if job.phase != wanted and not (job.phase == "Succeeded" and wanted in ("Finished", "Running")):
            missed.append(name)

    _for_each(jobs, names, one)
    if missed:
        raise typer.Exit(1)
