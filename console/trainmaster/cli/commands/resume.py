"""`kubectl dtj resume` resumes suspended jobs."""

from __future__ import annotations

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def resume(connection: Connection, names: JobNames) -> None:
    """Resume suspended jobs, from their checkpoint if its volume has outlived the pods."""
    jobs = connection.client()

    def one(name: str) -> None:
        job = find_job(jobs, name)
        jobs.resume(name)
        say(f"{name}: resuming" if job.to_be_suspended else f"{name}: is not suspended; it is {job.phase}")

    for_each(names, one)
