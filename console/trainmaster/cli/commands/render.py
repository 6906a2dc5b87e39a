"""`trainmaster render` shows what jobs in files become."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmaster.cli.file_names import Files, complete_path
from trainmaster.cli.program import Part

app = Part()


@app.command()
def render(
    files: Files,
    output: Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="Format.")] = "yaml",
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", "-d", help="Write a file for each child there, not to stdout.", autocompletion=complete_path
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of jobs whose file names none.")
    ] = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Show what jobs become: Services, ConfigMaps, StatefulSets.

    As the operator would apply them. To look at, not to apply: the owner's uid is only known once the job exists.
    """
    from trainmaster.cli.manifests import render_files

    raise typer.Exit(render_files(files, output, directory, namespace, force=force))
