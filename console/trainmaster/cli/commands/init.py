"""`trainmaster init` writes a job and its script to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.file_names import complete_path
from trainmaster.cli.program import Part

app = Part()


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the files.", autocompletion=complete_path)
    ] = Path(),
    name: Annotated[str, typer.Option("--name", help="Name of the job.")] = "my-training",
    workers: Annotated[int, typer.Option("--workers", help="Number of pods.")] = 2,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each pod.")] = 0,
    image: Annotated[str, typer.Option("--image", help="Image with torch.")] = "ghcr.io/trainmaster/trainer:0.1.0",
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a commented job.yaml and train.py to begin with.

    The script trains a small network with DDP, and a fault costs it no step; it also runs under plain torchrun.

    Example: trainmaster init circles --name circles --workers 2
    """
    from trainmaster.cli.init import Project, write_project

    raise typer.Exit(write_project(directory, Project(name, workers, gpus, image), force=force))
