"""`trainmaster` runs the operator and the local cluster, and checks and renders jobs' files without any cluster.

What a command needs is imported when it runs, so that `--help` and completion answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmaster import __version__
from trainmaster.cli import local, operator
from trainmaster.cli.terminal import Program, say, write

app = Program(
    name="trainmaster",
    help="Distributed PyTorch training on Kubernetes.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(operator.app, name="operator")
app.add_typer(local.app, name="local")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="YAML or JSON files with one or more documents, or folders; - is stdin."),
]


def _show_version(value: bool) -> None:
    if value:
        say(f"trainmaster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Distributed PyTorch training on Kubernetes."""


@app.command()
def validate(files: Files) -> None:
    """Check jobs without a cluster: one line for everything that is wrong, with its place in the file.

    Files are read as kubectl reads them. The exit code is 1 when anything is wrong, or when a file has no job.
    """
    from trainmaster.cli.manifests import validate_files

    raise typer.Exit(validate_files(files))


@app.command()
def render(
    files: Files,
    output: Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="Format.")] = "yaml",
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Write a file for each child there, not to stdout.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of jobs whose file names none.")
    ] = "default",
) -> None:
    """Show what a job becomes: its Service, ConfigMap and StatefulSets, as the operator would apply them.

    To look at, not to apply: the owner's uid is only known once the job exists.
    """
    from trainmaster.cli.manifests import render_files

    raise typer.Exit(render_files(files, output, directory, namespace))


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition (trainmaster crd | kubectl apply --server-side -f -)."""
    from trainmaster.api.crd import crd_yaml

    write(crd_yaml())


@app.command()
def demo(
    example: Annotated[Path, typer.Argument(help="The job to run.")] = Path("manifests/examples/reviews.yaml"),
    folder: Annotated[Path, typer.Option("--folder", help="Where logs, checkpoints and curves are kept.")] = Path(
        ".trainmaster/demo"
    ),
) -> None:
    """Train a real model on a cluster on this machine, and watch it. Stops everything that it started."""
    from trainmaster.cli import demo as demonstration

    raise typer.Exit(demonstration.run(example, folder))


if __name__ == "__main__":
    app()
