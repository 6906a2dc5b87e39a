"""`kubectl dtj suspend` stops jobs until they are resumed."""

from __future__ import annotations

from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.job_names import JobNames, find_job
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def suspend(connection: Connection, names: JobNames) -> None:
    """Stop jobs with a checkpoint, and free what they hold.

    They go on from it when they are resumed.
    """
    jobs = connection.client()

    def one(name: str) -> None:
        if find_job(jobs, name).to_be_suspended:
            say(f"{name}: is suspended already")
        else:
            jobs.suspend(name)
            say(f"{name}: to be suspended")

    for_each(names, one)
