"""`trainmaster validate` checks jobs in files."""

from __future__ import annotations

import typer

from trainmaster.cli.file_names import Files
from trainmaster.cli.program import Part

app = Part()


@app.command()
def validate(files: Files) -> None:
    """Check jobs: one line for everything that is wrong, with its place.

    Files are read as kubectl reads them. The exit code is 1 when anything is wrong, or when a file has no job.
    """
    from trainmaster.cli.manifests import validate_files

    raise typer.Exit(validate_files(files))
