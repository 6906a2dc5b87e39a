"""A small agent and operator for tests start ranks, assign continued attempts, and let ranks join.

They do only what docs/protocol.md ("Continuing") asks of an agent.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.trainer.ranks import environment, free_port, start_command


class Ranks:
    """Runs a job's ranks, each of which is a worker of its own."""

    def __init__(self, folder: Path, size: int, function: Callable[..., None], *arguments: Any) -> None:
        self.folder, self.size, self._function, self._arguments = folder, size, function, arguments
        self.file = folder / "group"
        self.attempt, self.absent = 1, set[int]()
        self.processes = dict[int, BaseProcess]()
        self._begun = dict[int, int]()
        self._port = free_port()
        for rank in range(size):
            os.mkfifo(f"{self.file}.{rank}", 0o600)
            (folder / f"memory-{rank}").mkdir()
            self._start(rank)

    def kill(self, *ranks: int) -> None:
        """Kill ranks, and assign the next attempt without them."""
        for rank in ranks:
            self.processes[rank].kill()
        for rank in ranks:
            self.processes[rank].join()
        self.continue_without(*ranks)

    def continue_without(self, *ranks: int) -> None:
        self.absent |= set(ranks)
        self._assign()

    def begin_to_join(self, *ranks: int) -> None:
        """Start ranks that will join."""
        for rank in ranks:
            self._progress(rank).unlink(missing_ok=True)
            self._start(rank, TRAINMASTER_JOINS="1")

    def join(self, *ranks: int) -> None:
        """Assign the next attempt, with the ranks that are ready."""
        for rank in ranks:
            self.wait(lambda rank=rank: self.progress(rank).get("continuing") == "ready")
        self.absent -= set(ranks)
        self._assign()

    def formed(self) -> None:
        """Wait until all present ranks are in the newest attempt's group."""
        for rank in set(range(self.size)) - self.absent:
            self.wait(lambda rank=rank: self.progress(rank).get("group") == self.attempt)

    def step(self) -> int:
        """Returns the newest step that any rank reports."""
        return max(self.progress(rank).get("step", 0) for rank in range(self.size))

    def reached(self, step: int) -> None:
        """Wait until a rank reports that it has made a step."""
        self.wait(lambda: self.step() >= step)

    def able(self) -> None:
        """Wait until all ranks report that they can continue."""
        for rank in range(self.size):
            self.wait(lambda rank=rank: self.progress(rank).get("continuing") == "able")

    def progress(self, rank: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._progress(rank).read_text())
        except (OSError, ValueError):
            return {}
        return found

    def output(self, rank: int) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob(f"out-{rank}-*")))

    def wait(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not condition():
            ended = [rank for rank, process in self.processes.items() if process.exitcode not in (None, 0, -9)]
            if ended or time.monotonic() > until:
                said = "\n".join(
                    f"{self.progress(rank)}\n{self.output(rank)[-3000:]}" for rank in ended or self.processes
                )
                raise AssertionError(f"ranks {ended} have ended; or it took too long:\n{said}")
            time.sleep(0.005)

    def ended(self, seconds: float = 100) -> None:
        """Wait until all ranks have ended well."""
        until = time.monotonic() + seconds
        for process in self.processes.values():
            process.join(max(0.0, until - time.monotonic()))
        codes = {rank: process.exitcode for rank, process in self.processes.items()}
        for rank, code in codes.items():
            if code is None:
                os.kill(self.processes[rank].pid or 0, signal.SIGABRT)  # which prints its stacks
                self.processes[rank].join(5)
        said = "\n".join(f"{self.progress(rank)}\n{self.output(rank)[-4000:]}" for rank in codes)
        assert set(codes.values()) == {0}, f"{codes}, attempt {self.attempt}:\n{said}"

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()

    def _progress(self, rank: int) -> Path:
        return self.folder / f"progress-{rank}"

    def _start(self, rank: int, **more: str) -> None:
        self._begun[rank] = self._begun.get(rank, 0) + 1
        variables = environment(rank, self.size, self._port, **more)
        variables |= {"TRAINMASTER_GROUP_FILE": str(self.file), "TRAINMASTER_ATTEMPT": str(self.attempt)}
        variables |= {"TRAINMASTER_PROGRESS_FILE": str(self._progress(rank)), "TRAINMASTER_JOB_UID": "job"}
        variables |= {"PYTHONFAULTHANDLER": "1", "TRAINMASTER_MEMORY_DIR": str(self.folder / f"memory-{rank}")}
        out = self.folder / f"out-{rank}-{self._begun[rank]}"
        self.processes[rank] = start_command(out, self._function, *self._arguments, **variables)

    def _assign(self) -> None:
        self.attempt += 1
        content = {"attempt": self.attempt, "absent": sorted(self.absent), "worldSize": self.size}
        beside = self.file.with_name("group.new")
        beside.write_text(json.dumps({**content, "master": "127.0.0.1", "port": free_port()}))
        beside.replace(self.file)
        for rank in set(range(self.size)) - self.absent:
            try:
                fifo = os.open(f"{self.file}.{rank}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            os.write(fifo, b"1")
            os.close(fifo)


@contextmanager
def starting(folder: Path, script: Callable[..., None]) -> Iterator[Callable[..., Ranks]]:
    """Yields a function that starts a job's ranks, which call another function with the job's folder and settings. All
    ranks end with the block.
    """
    ranks = list[Ranks]()

    def start(size: int, **settings: Any) -> Ranks:
        own = folder / str(len(ranks))
        own.mkdir()
        ranks.append(Ranks(own, size, script, own, settings))
        return ranks[-1]

    try:
        yield start
    finally:
        for each in ranks:
            each.stop()


def ends(ranks: Ranks) -> list[dict[str, torch.Tensor]]:
    """Let the ranks finish; returns what each has left."""
    (ranks.folder / "go").touch()
    ranks.ended()
    return [torch.load(ranks.folder / f"end-{rank}") for rank in range(ranks.size)]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, value in one.items():
        assert (value - other[name]).abs().max() < 1e-12, name
