"""Tests start real ranks: processes that join over gloo on this machine.

They are forked from one clean server process that has torch imported (and has computed nothing, so no threads are
lost in the fork), which makes a group of four start in a fraction of a second instead of four imports.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# torch imports _dynamo (over a second) when the first optimizer or DDP is made, and a rank FSDP2 (a quarter) when it is
# asked for, and at its end what writes checkpoints; here it is done once for all tests.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "torch._subclasses.schema_check_mode", "torch.utils.serialization.config"),
        *("trainloop.run", "trainloop.parallel.sharded", "trainloop.checkpoints.export", "trainloop.checkpoints.room"),
        *("tests.trainer.toy", "tests.trainer.preloaded"),
    ]
)

ROOT = Path(__file__).parents[2]
#: The command line's arguments for the toy task.
TOY = ["--set", "task.name=tests.trainer.toy:Toy", "--set", "batch.size=8", "--set", "precision.compute=fp64"]


def free_port() -> int:
    """Returns a port below the ephemeral range, so that no outgoing connection uses it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15000, 28000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """Returns the variables that torchrun or the agent sets for a rank; each rank is a worker of its own."""
    one = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}


class RankFailed(AssertionError):
    """A rank raised; the message has its traceback."""


def start_rank(
    function: Callable[..., Any], rank: int, size: int, port: int, out: Path, *arguments: Any
) -> BaseProcess:
    """Start one rank that calls `function(*arguments)` and leaves what it returns in `out`."""
    forkserver.ensure_running()
    server = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    process = _CONTEXT.Process(
        target=_rank, args=(function, environment(rank, size, port), out, arguments, server), daemon=False
    )
    process.start()
    return process


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 150) -> list[Any]:
    """Call `function(*arguments)` in `size` ranks; returns what each returned, in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        outs = [Path(folder) / f"{rank}" for rank in range(size)]
        processes = [start_rank(function, rank, size, port, out, *arguments) for rank, out in enumerate(outs)]
        try:
            for process in processes:
                process.join(seconds)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
        results = [pickle.loads(out.read_bytes()) if out.exists() else ("error", "no answer") for out in outs]
        errors = [f"rank {rank}:\n{value}" for rank, (kind, value) in enumerate(results) if kind == "error"]
        if errors:
            raise RankFailed("\n".join(errors))
        return [value for _, value in results]


def _rank(
    function: Callable[..., Any], variables: dict[str, str], out: Path, arguments: tuple[Any, ...], server: str
) -> None:
    import torch

    os.environ.update(variables)
    # Its loader processes are forked from the server of all tests: one of each rank's own would import torch anew.
    forkserver._forkserver._forkserver_address = server  # type: ignore[attr-defined]
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    # A rank outlives no hang: it prints its stacks, and ends.
    faulthandler.dump_traceback_later(140, exit=True)
    try:
        answer = ("value", function(*arguments))
    except Exception:
        answer = ("error", traceback.format_exc())
    out.write_bytes(pickle.dumps(answer))


def python_m_trainloop(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command line as a process of its own; its output and errors are in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "trainloop", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
