"""`crd`, `operator`, `demo`, `completion` and `mcp` each print a text or start another program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmaster.cli.connection import Connection, connected, path_argument, path_option
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import called, write

app = Part()


@app.command("crd")
def crd() -> None:
    """Print the CustomResourceDefinition.

    To install it: trainmaster crd | kubectl apply --server-side -f -
    """
    from trainmaster_operator.api.crd import crd_yaml

    write(crd_yaml())


_PASSES_ALL = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("operator", add_help_option=False, context_settings=_PASSES_ALL)
def operator(ctx: typer.Context) -> None:
    """Run the operator, or rotate its keys.

    `operator run --help` and `operator keys --help` show the options.
    """
    _require("kopf", "the operator", "operator")
    from trainmaster_operator.controller.main import main

    raise typer.Exit(main(ctx.args, f"{called()} operator"))


@app.command("demo")
def demo(
    example: Annotated[Path, path_argument(help="File of the job to run.")] = Path("manifests/examples/reviews.yaml"),
    folder: Annotated[Path, path_option(help="Folder for logs, checkpoints and curves.")] = Path(".trainmaster/demo"),
) -> None:
    """Train a real model on a cluster on this machine, and watch it.

    The demo stops everything it started. The folder must be empty or an earlier demo's.
    """
    from trainmaster.cli.demo import Demo

    raise typer.Exit(0 if Demo(example, folder.resolve()).run() else 1)


@app.command("completion")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print a shell's completion script for `trainmaster`.

    For the present shell: source <(trainmaster completion bash). For every shell: put that line into ~/.bashrc or
    ~/.zshrc; for fish: trainmaster completion fish > ~/.config/fish/completions/trainmaster.fish. `kubectl dtj` is
    completed by kubectl's own completion (kubectl completion --help), including the names of jobs.
    """
    from typer.completion import get_completion_script

    script = get_completion_script(prog_name="trainmaster", complete_var="_TRAINMASTER_COMPLETE", shell=shell)
    write(script.strip() + "\n")


@app.command("mcp")
@connected
def mcp(connection: Connection) -> None:
    """Serve jobs to an assistant over stdio (MCP), read-only.

    It answers about jobs, why, logs, evidence and events. docs/assistants.md has an assistant's configuration.
    """
    _require("mcp", "the MCP SDK", "mcp")
    from trainmaster.cli.assistant import server

    server(connection.client()).run("stdio")


def _require(module: str, what: str, extra: str) -> None:
    """Raises ClientError if a module isn't installed."""
    from trainmaster.client.errors import ClientError

    if find_spec(module) is None:
        raise ClientError(f"{what} isn't installed: pip install 'trainmaster[{extra}]'")
