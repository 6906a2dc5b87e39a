"""`kubectl dtj restart` restarts all ranks of jobs in their pods."""

from __future__ import annotations

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def restart(connection: Connection, names: JobNames) -> None:
    """Restart all ranks of jobs in their pods.

    Scripts that save a checkpoint at SIGTERM do so first. This doesn't count against maxRestarts.
    """
    jobs = connection.client()

    def one(name: str) -> None:
        find_job(jobs, name)
        jobs.restart(name)
        say(f"{name}: restarting")

    for_each(names, one)
