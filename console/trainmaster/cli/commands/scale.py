"""`kubectl dtj scale` changes the number of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.arguments import JobNames, find_job
from trainmaster.cli.connection import Connection, connected, for_each
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part()


@app.command()
@connected
def scale(
    connection: Connection,
    names: JobNames,
    workers: Annotated[int, typer.Option("--workers", help="New number of workers.", min=1)],
) -> None:
    """Change the number of workers."""
    jobs = connection.client()

    def one(name: str) -> None:
        before = find_job(jobs, name).raw["spec"].get("workers")
        jobs.scale(name, workers)
        say(f"{name}: {workers} workers" + ("" if before is None else f", {before} before"))

    for_each(names, one)
