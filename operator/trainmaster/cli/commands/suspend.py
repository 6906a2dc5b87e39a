"""`kubectl dtj suspend` stops jobs until they are resumed."""

from __future__ import annotations

from trainmaster.cli.connection import Connection, connected
from trainmaster.cli.job_names import JobName, find_job
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def suspend(connection: Connection, name: JobName) -> None:
    """Stop a job with a checkpoint and free what it holds, until it is resumed."""
    jobs = connection.client()
    if find_job(jobs, name).to_be_suspended:
        say(f"{name}: is suspended already")
    else:
        jobs.suspend(name)
        say(f"{name}: to be suspended")
