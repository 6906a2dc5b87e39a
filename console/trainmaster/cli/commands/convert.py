"""`trainmaster convert` makes jobs of other operators' manifests."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trainmaster.cli.file_names import Files
from trainmaster.cli.program import Part

app = Part()


@app.command()
def convert(
    files: Files,
    output: Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="Format.")] = "yaml",
    report: Annotated[bool, typer.Option("--report", help="Print the report on stdout, and no manifests.")] = False,
) -> None:
    """Make jobs of PyTorchJobs, TrainJobs and JobSets.

    The jobs go to stdout. To stderr goes a line for every field: where it is now, or why it isn't. What stands beside
    the jobs stays as it is; a TrainJob's runtime is looked for in the files. The exit code is 1 when a field was
    refused.

    Example: trainmaster convert pytorchjob.yaml > job.yaml
    """
    from trainmaster.cli.convert import convert_files

    raise typer.Exit(convert_files(files, output, report=report))
