"""`local` runs the embedded cluster, for a laptop without Docker."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.connection import path_option
from trainmaster.cli.program import Part
from trainmaster.cli.terminal import say

app = Part(help="Run a small Kubernetes on this machine, made of processes.")

STATE_DIR = Path(".trainmaster/local")

StateDir = Annotated[Path, path_option(envvar="TRAINMASTER_LOCAL_DIR", help="Folder of the cluster's files.")]


def _state_option(state_dir: Path) -> str:
    return "" if state_dir == STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"


@app.command()
def up(
    state_dir: StateDir = STATE_DIR,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each node; default: the machine's, split among the nodes.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, which stops the cluster.")
    ] = False,
) -> None:
    """Start the cluster and print how to use it."""
    from trainmaster.local import CONFIGURE, local_cluster

    with local_cluster() as cluster:
        info = cluster.up(state_dir.resolve(), nodes=nodes, gpus=gpus, detach=not foreground, configure=CONFIGURE)
    if not foreground:
        say(f"The cluster is up at {info.server} (process {info.pid}).")
        say(f"Use it:   export KUBECONFIG={info.kubeconfig}")
        say(f"Stop it:  trainmaster local down{_state_option(state_dir)}")


@app.command()
def down(state_dir: StateDir = STATE_DIR) -> None:
    """Stop the cluster and everything in it; keep its folder."""
    from trainmaster.local import local_cluster

    with local_cluster() as cluster:
        stopped = cluster.down(state_dir.resolve())
    say("The cluster is down." if stopped else "No cluster was running.")


@app.command()
def status(state_dir: StateDir = STATE_DIR) -> None:
    """Show whether the cluster is running, and its GPUs; exit with 1 if it isn't."""
    from trainmaster.local import local_cluster

    with local_cluster() as cluster:
        info = cluster.status(state_dir.resolve())
    if info is None:
        say(f"No cluster is running. Start one: trainmaster local up{_state_option(state_dir)}")
        raise typer.Exit(1)
    say(f"The cluster is up at {info.server} (process {info.pid}), kubeconfig {info.kubeconfig}.")
    say(info.gpus)
