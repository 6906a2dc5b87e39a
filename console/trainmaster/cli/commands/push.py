"""`kubectl dtj push` uploads new code into a running job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.arguments import JobName, duration_option, find_job
from trainmaster.cli.connection import Connection, complete_path, connected
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

if TYPE_CHECKING:
    from trainmaster.client import TrainingJob

app = Part()


@app.command()
@connected
def push(
    connection: Connection,
    name: JobName,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of the code.", autocompletion=complete_path),
    ],
    wait: Annotated[bool, typer.Option(help="Wait until the ranks run the new code.")] = True,
    timeout: Annotated[float, duration_option()] = "10m",  # type: ignore[assignment]
) -> None:
    """Upload new code into a job that was submitted with --code.

    Its ranks save a checkpoint and restart with the new code in the same pods; this doesn't count against maxRestarts.
    DIR replaces all of the job's code. A folder without the job's script is refused.
    """
    from trainmaster.client.code import archive_folder, push_code
    from trainmaster.client.code.archive import size_text
    from trainmaster.client.view import view_of

    jobs = connection.client()
    began = time.monotonic()
    archive = archive_folder(folder)
    if archive.left_out:
        say(archive.left(), error=True)
    find_job(jobs, name)
    pushed = push_code(jobs, name, archive)
    files = "1 file" if len(archive.sizes) == 1 else f"{len(archive.sizes)} files"
    code = f"{archive.digest[:12]} ({files}, {size_text(len(archive.data))})"
    if not pushed.changed:
        say(f"{name}: already has this code, {code}")
        return
    say(f"{name}: new code {code}")
    if pushed.job.to_be_suspended:
        say(f"{name}: is suspended, and runs the new code when it is resumed")
        return
    if not wait:
        return

    def runs(job: TrainingJob) -> bool:
        return job.finished or (job.status.code_digest == archive.digest and job.phase == "Running")

    job = jobs.wait(name, until=runs, timeout=timeout)
    if job.finished:
        ran = job.status.code_digest == archive.digest
        say(view_of(job.raw).outcome + ("" if ran else "; the new code never ran"))
        if job.phase == "Failed" or not ran:
            raise typer.Exit(1)
        return
    say(
        f"{name}: running the new code in attempt {job.status.attempt}, {time.monotonic() - began:.1f} s after the push"
    )
