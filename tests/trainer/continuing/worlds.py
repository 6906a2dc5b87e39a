"""Tests play the agent and the operator of ranks that can continue: they assign attempts through the ranks' files."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.trainer.ranks import free_port, start_rank


class World:
    """Runs a job's ranks on this machine. A rank's return value is pickled into its process's file `out`."""

    def __init__(self, size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> None:
        self.size, self.folder, self.port = size, folder, free_port()
        self.function, self.arguments = function, arguments
        self.attempt, self.absent = 1, frozenset[int]()
        self.processes = dict[int, BaseProcess]()
        self.outs = list[Path]()
        #: For each rank, the place of its newest process in `outs`.
        self.numbers = dict[int, int]()
        for rank in range(size):
            os.mkfifo(f"{self.file}.{rank}")
        for rank in range(size):
            self.start(rank, joins=False)

    @property
    def file(self) -> Path:
        return self.folder / "group"

    def start(self, rank: int, *, joins: bool = True) -> None:
        """Start a rank's first process, or one that joins in place of a lost one."""
        out = self.folder / f"out-{len(self.outs)}-{rank}"
        self.numbers[rank] = len(self.outs)
        self.outs.append(out)
        variables = group_variables(self.file, joins=joins)
        begin = (_begin, rank, self.size, self.port, out, variables, self.function, self.arguments, str(self.folder))
        self.processes[rank] = start_rank(*begin)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def stop(self, rank: int) -> None:
        self._send(rank, signal.SIGSTOP)

    def go_on(self, rank: int) -> None:
        self._send(rank, signal.SIGCONT)

    def unread(self, rank: int) -> int:
        """Returns how many bytes have arrived at a rank that it hasn't read."""
        own = {str(link.readlink()) for link in Path(f"/proc/{self.processes[rank].pid}/fd").iterdir()}
        lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
        rows = [line.split() for line in lines]
        return sum(int(row[4].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own)

    def _send(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wake(self, rank: int) -> None:
        """Wake a rank as its agent does."""
        try:
            fifo = os.open(f"{self.file}.{rank}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return  # nobody reads it
        os.write(fifo, b"!")
        os.close(fifo)

    def assign(self, absent: Iterable[int] = (), *, wakes: Iterable[int] | None = None, port: int | None = None) -> int:
        """Assign the next attempt, without the `absent` ranks, and wake ranks as their agent does; returns the
        attempt.
        """
        self.attempt += 1
        self.absent = frozenset(absent)
        order = {"attempt": self.attempt, "absent": sorted(self.absent), "worldSize": self.size}
        text = json.dumps({**order, "master": "127.0.0.1", "port": port or free_port()})
        temporary = self.file.with_name("group.new")
        temporary.write_text(text)
        temporary.rename(self.file)
        for rank in range(self.size) if wakes is None else wakes:
            self.wake(rank)
        return self.attempt

    def ended(self, ranks: Iterable[int], seconds: float = 60) -> None:
        """Wait until these ranks have ended; fails if one doesn't end well."""
        until = time.monotonic() + seconds
        for rank in ranks:
            process = self.processes[rank]
            process.join(max(0.0, until - time.monotonic()))
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"

    def trains(self, ranks: Iterable[int], seconds: float = 60) -> None:
        """Wait until these ranks have called `trains`."""
        until = time.monotonic() + seconds
        for rank in ranks:
            while not (self.folder / f"trains-{rank}").exists():
                assert time.monotonic() < until, f"rank {rank} doesn't train"
                time.sleep(0.005)

    def close(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join(10)


def trains() -> None:
    """Shows that this rank has got this far."""
    Path(os.environ["WORLD_FOLDER"], f"trains-{os.environ['RANK']}").touch()


@contextmanager
def world(size: int, function: Callable[..., Any], *arguments: Any) -> Iterator[World]:
    """Yields a world whose ranks run `function(*arguments)`; they end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        made = World(size, Path(folder), function, *arguments)
        try:
            yield made
        finally:
            made.close()


def group_variables(file: Path, *, joins: bool) -> dict[str, str]:
    """Returns what the agent adds to a rank's environment."""
    return {"TRAINMASTER_GROUP_FILE": str(file), **({"TRAINMASTER_JOINS": "1"} if joins else {})}


def _begin(variables: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...], folder: str) -> Any:
    os.environ.update(variables, WORLD_FOLDER=folder)
    from trainloop.continuing.start import install

    install()
    return function(*arguments)
