"""Tests start real ranks: processes that join over gloo on this machine.

They are forked from one clean server process that has imported what they need (`preloaded`) and has computed nothing,
so no threads are lost in the fork. A group of four starts in a fraction of a second, without four times the imports.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import random
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.trainer.preloaded"])

ROOT = Path(__file__).parents[2]
#: The command-line arguments for the toy task.
TOY = ["--set", "task.name=tests.trainer.toy:Toy", "--set", "batch.size=8", "--set", "precision.compute=fp64"]


def free_port() -> int:
    """Returns a port below the ephemeral range, so that no outgoing connection takes it meanwhile."""
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
    """A rank raised an exception; the message contains its traceback."""


def start_rank(
    function: Callable[..., Any], rank: int, size: int, port: int, out: Path, *arguments: Any
) -> BaseProcess:
    """Start one rank that calls `function(*arguments)` and writes the result to `out`."""
    forkserver.ensure_running()
    server = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    process = _CONTEXT.Process(
        target=_rank, args=(function, environment(rank, size, port), out, arguments, server), daemon=False
    )
    process.start()
    return process


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 150) -> list[Any]:
    """Call `function(*arguments)` in `size` ranks; returns the results in rank order."""
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
    # Its loader processes are forked from the server of all tests: a server per rank would import torch again.
    forkserver._forkserver._forkserver_address = server  # type: ignore[attr-defined]
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    # If a rank hangs, it prints its stacks and ends.
    faulthandler.dump_traceback_later(140, exit=True)
    try:
        answer = ("value", function(*arguments))
    except Exception:
        answer = ("error", traceback.format_exc())
    out.write_bytes(pickle.dumps(answer))


def start_command(out: Path, function: Callable[..., Any], *arguments: Any, **variables: str) -> BaseProcess:
    """Start a process that calls `function(*arguments)` and has an exit code; its output is in the file `out`.

    It is forked like a rank, because a new Python would take seconds to import torch.
    """
    process = _CONTEXT.Process(target=_command, args=(function, variables, out, arguments), daemon=False)
    process.start()
    return process


def _command(function: Callable[..., Any], variables: dict[str, str], out: Path, arguments: tuple[Any, ...]) -> None:
    import torch

    with out.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(variables)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(140, exit=True)
    function(*arguments)


def trainloop(*arguments: str) -> None:
    """Do what `python -m trainloop` does with these arguments."""
    from trainloop.__main__ import leave, main

    leave(main([*arguments]))


def exit_codes(processes: Iterable[BaseProcess], seconds: float = 150) -> list[int | None]:
    """Waits for the processes; returns their exit codes."""
    ended = [*processes]
    for process in ended:
        process.join(seconds)
    for process in ended:
        process.kill()
    return [process.exitcode for process in ended]
