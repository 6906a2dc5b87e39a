"""`trainmaster demo` trains a real model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.file_names import complete_path
from trainmaster.cli.program import Part

app = Part()


@app.command()
def demo(
    example: Annotated[Path, typer.Argument(help="The job to run.", autocompletion=complete_path)] = Path(
        "manifests/examples/reviews.yaml"
    ),
    folder: Annotated[
        Path,
        typer.Option("--folder", help="Where logs, checkpoints and curves are kept.", autocompletion=complete_path),
    ] = Path(".trainmaster/demo"),
) -> None:
    """Train a real model on a cluster on this machine, and watch it.

    The demo stops everything that it started. The folder must be empty or an earlier demo's.
    """
    from trainmaster.cli import demo as demonstration

    raise typer.Exit(demonstration.run(example, folder))
