"""`kubectl dtj restart` starts the ranks of jobs anew, in their pods."""

from __future__ import annotations

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def restart(connection: Connection, names: JobNames) -> None:
    """Start all ranks of jobs anew, in their pods.

    They save a checkpoint first, where the script does so at SIGTERM. It takes none of maxRestarts.
    """
    jobs = connection.client()

    def one(name: str) -> None:
        find_job(jobs, name)
        jobs.restart(name)
        say(f"{name}: to be restarted")

    for_each(names, one)
