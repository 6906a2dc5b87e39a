"""`init`, `validate`, `render` and `convert` write, check and translate jobs in files, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmaster.cli.arguments import Files
from trainmaster.cli.connection import path_argument, path_option
from trainmaster.cli.program import Part

app = Part()

Format = Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="Output format.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


@app.command("init")
def init(
    directory: Annotated[Path, path_argument(metavar="DIR", help="Folder of the files.")] = Path(),
    name: Annotated[str, typer.Option(help="Name of the job.")] = "my-training",
    workers: Annotated[int, typer.Option(help="Number of pods.")] = 2,
    gpus: Annotated[int, typer.Option(help="GPUs of each pod.")] = 0,
    image: Annotated[str, typer.Option(help="Image with torch.")] = "ghcr.io/trainmaster/trainer:0.1.0",
    force: Force = False,
) -> None:
    """Write a commented job.yaml and train.py to begin with.

    The script trains a small network with DDP, and a fault costs it no step; it also runs under plain torchrun.

    Example: trainmaster init circles --name circles --workers 2
    """
    from trainmaster.cli.manifests import Project, write_project

    write_project(directory, Project(name, workers, gpus, image), force=force)


@app.command("validate")
def validate(files: Files) -> None:
    """Check jobs: one line for each mistake, with its place.

    Files are read as kubectl reads them. The exit code is 1 if anything is wrong, or if a file has no job.
    """
    from trainmaster.cli.manifests import validate_files

    raise typer.Exit(validate_files(files))


@app.command("render")
def render(
    files: Files,
    output: Format = "yaml",
    directory: Annotated[
        Path | None, path_option("--directory", "-d", help="Write a file for each child there, not to stdout.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of jobs whose file names none.")
    ] = "default",
    force: Force = False,
) -> None:
    """Show the Services, ConfigMaps and StatefulSets that the operator makes of jobs.

    They are for reading and can't be applied: the owner's uid is only known once the job exists.
    """
    from trainmaster.cli.manifests import render_files

    raise typer.Exit(render_files(files, output, directory, namespace, force=force))


@app.command("convert")
def convert(
    files: Files,
    output: Format = "yaml",
    report: Annotated[bool, typer.Option("--report", help="Print only the report, to stdout.")] = False,
) -> None:
    """Convert PyTorchJobs, TrainJobs and JobSets into jobs.

    The jobs go to stdout. A line for every field goes to stderr: its new place, or why it has none. Other objects stay
    as they are; a TrainJob's runtime is looked up in the files. The exit code is 1 if a field was refused.

    Example: trainmaster convert pytorchjob.yaml > job.yaml
    """
    from trainmaster.cli.convert import convert_files

    raise typer.Exit(convert_files(files, output, report=report))
