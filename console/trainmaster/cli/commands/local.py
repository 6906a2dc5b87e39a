"""`local` runs the embedded cluster, for a laptop without Docker."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from trainmaster.cli.connection_values import complete_path
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part(help="Run a small Kubernetes on this machine, made of processes.")

STATE_DIR = Path(".trainmaster/local")

StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="TRAINMASTER_LOCAL_DIR",
        help="Folder of the cluster's files.",
        autocompletion=complete_path,
    ),
]


def _cluster() -> ModuleType:
    """Returns the module that starts and stops clusters, from an optional distribution."""
    try:
        from trainmaster_local import cluster
    except ModuleNotFoundError as error:
        say("error: the local cluster isn't installed: pip install 'trainmaster[local]'", error=True)
        raise typer.Exit(1) from error
    return cluster


def _failed(error: Exception) -> typer.Exit:
    """Prints the error, and returns the exit to raise."""
    say(f"error: {error}", error=True)
    return typer.Exit(1)


def _state_option(state_dir: Path) -> str:
    return "" if state_dir == STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"


@app.command()
def up(
    state_dir: StateDir = STATE_DIR,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="Number of nodes.")] = 1,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=0, help="GPUs of each node; default: the machine's, split among the nodes."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, which stops the cluster.")
    ] = False,
) -> None:
    """Start the cluster and print how to use it."""
    cluster = _cluster()
    from trainmaster.local import CONFIGURE

    try:
        info = cluster.up(state_dir.resolve(), nodes=nodes, gpus=gpus, detach=not foreground, configure=CONFIGURE)
    except cluster.LocalClusterError as error:
        raise _failed(error) from error
    if not foreground:
        say(f"The cluster is up at {info.server} (process {info.pid}).")
        say(f"Use it:   export KUBECONFIG={info.kubeconfig}")
        say(f"Stop it:  trainmaster local down{_state_option(state_dir)}")


@app.command()
def down(state_dir: StateDir = STATE_DIR) -> None:
    """Stop the cluster and everything in it; keep its folder."""
    cluster = _cluster()
    try:
        stopped = cluster.down(state_dir.resolve())
    except cluster.LocalClusterError as error:
        raise _failed(error) from error
    say("The cluster is down." if stopped else "No cluster was running.")


@app.command()
def status(state_dir: StateDir = STATE_DIR) -> None:
    """Show whether the cluster is running, and its GPUs; exit with 1 if it isn't."""
    cluster = _cluster()
    try:
        info = cluster.status(state_dir.resolve())
    except cluster.LocalClusterError as error:
        raise _failed(error) from error
    if info is None:
        say(f"No cluster is running. Start one: trainmaster local up{_state_option(state_dir)}")
        raise typer.Exit(1)
    say(f"The cluster is up at {info.server} (process {info.pid}), kubeconfig {info.kubeconfig}.")
    say(info.gpus)
