"""`kubectl dtj suspend` stops jobs until they are resumed."""

from __future__ import annotations

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def suspend(connection: Connection, names: JobNames) -> None:
    """Stop jobs with a checkpoint, and free their resources.

    Resumed jobs continue from the checkpoint if its volume outlives the pods: a claim does, an emptyDir doesn't.
    """
    from trainmaster.client.sentences import KEEPING, lost_checkpoints

    jobs = connection.client()

    def one(name: str) -> None:
        job = find_job(jobs, name)
        if job.to_be_suspended:
            say(f"{name}: already suspended")
            return
        jobs.suspend(name)
        say(f"{name}: suspending")
        lost = lost_checkpoints(job)
        if lost is not None:
            say(f"warning: {lost}; {KEEPING}", error=True)

    for_each(names, one)
