"""What an attempt's processes print, and what says of a rank that ended why it did."""

from __future__ import annotations

import os
from typing import Optional

from trainmaster_operator.agent.hang.stacks import MAX_STACKS_BYTES, STACKS_MARK, shorten_stacks, tail_of
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.planner.classification import (
    broken_connection,
    conclusion,
    with_assertion,
    without_additions,
)
from trainmaster_operator.agent.process.error_files import read_error_file
from trainmaster_operator.agent.process.output import KeptLog, Printers, Pump
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.settings import Settings


class AttemptOutput:
    """AttemptOutput prints what the processes print, keeps its tail in the attempt's folder, and reads what is there.

    A process's streams have the names `<process>.out` and `<process>.err`.
    """

    def __init__(self, loop: Loop, settings: Settings, folder: str, printers: Printers) -> None:
        self._loop = loop
        self.printed = Printed(settings, self.say)
        self._folder = folder
        self._printers = printers
        self._pumps: dict[str, Pump] = {}
        self._logs: list[KeptLog] = []

    def open_rank_pipes(self, processes: int, first_rank: int) -> None:
        """Make the named pipes that ranks print into."""
        for local_rank in range(processes):
            name = f"rank-{local_rank}"
            pipes = (named_pipe(os.path.join(self._folder, f"{name}.{suffix}")) for suffix in ("out", "err"))
            rank = first_rank + local_rank
            self.pump(name, (next(pipes), next(pipes)), f"[rank {rank}]: ", rank)

    def pump(self, process: str, streams: tuple[int, int], prefix: str, rank: Optional[int] = None) -> None:
        """Print what comes from a process's two streams. `rank`: whose progress it may say."""
        reader = None if rank is None else self.printed.reader(rank)
        for suffix, fd, printer in zip(("out", "err"), streams, self._printers):
            name = f"{process}.{suffix}"
            log = KeptLog(self.log_path(name))
            self._logs.append(log)
            self._pumps[name] = Pump(self._loop, fd, prefix, printer, log, reader)

    def begin_rank_anew(self, local_rank: int) -> None:
        """Another process takes a rank's place, and prints into its pipes."""
        for suffix in ("out", "err"):
            self._pumps[f"rank-{local_rank}.{suffix}"].begin_anew()

    def print_separator(self, attempt: int) -> None:
        """Tell attempts apart: several may print into one container's log."""
        if attempt > 1:
            self._printers.stdout.write(b"--- attempt %d ---\n" % attempt)

    def say(self, sentence: str) -> None:
        """Print what the agent itself has to say."""
        self._printers.stderr.write(f"[agent]: {sentence}\n".encode())

    def log_path(self, name: str) -> str:
        """Returns where a stream's tail is kept."""
        return os.path.join(self._folder, f"{name}.log")

    def last_lines(self, process: str) -> str:
        """Returns what a process has printed last, which says why it ended."""
        for name in (f"{process}.err", f"{process}.out"):
            pump = self._pumps.get(name)
            if pump is not None:
                pump.drain()
                text = conclusion(pump.last_lines(MAX_STACKS_BYTES))
                if STACKS_MARK in text:
                    # Stacks are longer than what went before them, which is why the rank was ended.
                    text = shorten_stacks(without_additions(self._tail(name))) or text
                if text:
                    return text
        return ""

    def evidence(self, local_rank: int, *, by_torchrun: bool) -> str:
        """Returns a rank's last lines: its exception where torch's error file has it, else what it printed last."""
        name = f"rank-{local_rank}"
        found = filter(None, map(read_error_file, self._error_files(local_rank, by_torchrun)))
        return with_assertion(next(found, "") or self.last_lines(name), lambda: self._tail(f"{name}.err"))

    def _tail(self, name: str) -> str:
        pump = self._pumps.get(name)
        if pump is not None:
            pump.drain()
        return tail_of(self.log_path(name), MAX_STACKS_BYTES)

    def raised(self, local_rank: int, *, by_torchrun: bool) -> bool:
        """Returns whether torch's error file has an exception of this rank, which isn't that its peer was gone."""
        files = self._error_files(local_rank, by_torchrun)
        errors = [text for text in map(read_error_file, files) if text]
        return bool(errors) and not broken_connection(errors[0])

    def _error_files(self, local_rank: int, by_torchrun: bool) -> list[str]:
        if not by_torchrun:
            return [os.path.join(self._folder, "error.json")]
        # torchrun puts a folder with a name of its own in between, one in each of its lives.
        folder = os.path.join(self._folder, "torchrun")
        lives = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, life, "attempt_0", str(local_rank), "error.json") for life in lives]

    def close(self) -> None:
        """Read what is left, and close all of it."""
        for pump in self._pumps.values():
            pump.close()
        for log in self._logs:
            log.close()


def named_pipe(path: str) -> int:
    """Make a named pipe and open it to read. It has no end as long as it is open for writing here too, also when one
    process has ended that writes into it, and the next one hasn't begun (fifo(7)).
    """
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        os.unlink(path)
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)
