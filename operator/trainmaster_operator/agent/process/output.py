"""This module forwards the ranks' output line by line with a prefix, and keeps its newest part in the state folder.

A pump reads one pipe. The agent writes to its own stdout only when stdout accepts more. So if the container runtime is
slow, the ranks' pipes fill and the ranks wait, but the agent never does. `AttemptOutput` owns all pumps of an attempt,
and finds the reason for a rank's end in the kept output.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Optional

from trainmaster_operator.agent.loop import READ, WRITE, Loop
from trainmaster_operator.agent.planner.classification import (
    broken_connection,
    conclusion,
    with_assertion,
    without_additions,
)
from trainmaster_operator.agent.process.stacks import MAX_STACKS_BYTES, STACKS_MARK, shorten_stacks, tail_of
from trainmaster_operator.agent.process.state_folder import read_error_file, unlink
from trainmaster_operator.agent.progress.printed import Printed
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.limits import MAX_OUTPUT_BYTES
from trainmaster_operator.wire.values import last_lines

CHUNK_BYTES = 65_536
MAX_LINE_BYTES = 16_384
MAX_PENDING_BYTES = 1_048_576
"""While this much output is waiting to be written, no pipe is read."""
LOG_BYTES = 1_048_576
"""A kept log is rotated at this size; one older part is kept."""
TAIL_LINES = 60
# torch logs this line as an error for each dump of its flight recorder (torch 2.11 to 2.15, ProcessGroupNCCL.cpp). It
# is no error, so the line is left out of the user's log and of the evidence, and doesn't count as a sign of life.
_DUMP = (
    rb"ProcessGroupNCCL\.cpp:\d+\].*(?:preparing to dump debug info|dumping nccl trace to|triggering FR dump"
    rb"|trace successfully dumped)"
)

Reader = Callable[[Sequence[bytes], bytes], None]
"""A function that takes the lines that a stream's new data completes, and the unfinished next line."""


class PrintedEnd:
    """PrintedEnd keeps the last lines of the agent's own output, including its ranks' lines."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Add complete lines with the present time."""
        self._pieces.append((time.time(), data))
        self._size += len(data)
        while self._size > MAX_OUTPUT_BYTES and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft()[1])

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields the lines and the time of each, in milliseconds since the epoch."""
        for at, data in self._pieces:
            for line in data[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace").split("\n")[:-1]:
                yield round(at * 1_000), line


class Printer:
    """Printer writes to one of the agent's own output streams (descriptor 1 or 2)."""

    def __init__(self, loop: Loop, fd: int, end: PrintedEnd) -> None:
        self._loop, self._fd, self._end = loop, fd, end
        self._pending = bytearray()
        self._on_room: list[Callable[[], None]] = []
        mode = os.fstat(fd).st_mode
        # A regular file accepts everything at once, and epoll refuses it.
        self._waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)

    @property
    def full(self) -> bool:
        """Returns whether so much output is waiting that no more should be read for this stream."""
        return len(self._pending) >= MAX_PENDING_BYTES

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the printer is no longer `full`."""
        self._on_room.append(call)

    def write(self, data: bytes) -> None:
        """Write complete lines in order, now or when the stream accepts them."""
        self._end.add(data)
        self._pending += data
        self._flush(0)

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` until the last lines are written, because the agent is about to exit."""
        while self._pending and self._ready(seconds):
            self._write_some()

    def _flush(self, _events: int) -> None:
        while self._pending and (not self._waits or self._ready(0)):
            self._write_some()
        if self._pending and self._waits:
            try:
                self._loop.watch(self._fd, WRITE, self._flush)
            except PermissionError:
                # epoll refuses a device such as /dev/null, which never blocks.
                self._waits = False
                self._flush(0)
                return
        else:
            self._loop.unwatch(self._fd)
        if not self.full:
            calls, self._on_room = self._on_room, []
            for call in calls:
                call()

    def _ready(self, seconds: float) -> bool:
        if not self._waits:
            return True
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(seconds * 1_000))

    def _write_some(self) -> None:
        # A ready pipe accepts PIPE_BUF bytes without blocking (pipe(7)), even in blocking mode.
        size = select.PIPE_BUF if self._waits else len(self._pending)
        try:
            written = os.write(self._fd, self._pending[:size])
        except OSError:
            # The reader is gone, so the output is lost, but the training continues.
            written = len(self._pending)
        del self._pending[:written]


class Printers(NamedTuple):
    """Printers contains a printer for each of the agent's standard streams."""

    stdout: Printer
    stderr: Printer

    def say(self, text: str) -> None:
        """Print a message of the agent itself."""
        self.stderr.write(f"[agent]: {text}\n".encode())


class RotatedLog:
    """RotatedLog is a log file of bounded size: `path` and one older part, `path.1`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append the data. If the disk is full, only the kept copy is lost."""
        with contextlib.suppress(OSError):
            if self._size + len(data) > LOG_BYTES:
                self._file.close()
                os.replace(self._path, f"{self._path}.1")
                self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
                self._size = 0
            self._file.write(data)
            self._size += len(data)

    def close(self) -> None:
        self._file.close()


class Pump:
    """Pump reads a pipe's lines, prints them with a prefix, and keeps them in the file `log`.

    `read` is called with new lines (`Reader`).
    """

    def __init__(
        self, loop: Loop, fd: int, prefix: str, printer: Printer, log: str = "", read: Reader | None = None
    ) -> None:
        self._loop, self._fd, self._printer, self._read_progress = loop, fd, printer, read
        self._prefix = prefix.encode()
        self._log = RotatedLog(log) if log else None
        self._partial = b""
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._readable)

    def last_lines(self, characters: int) -> str:
        """Returns the last lines, with at most this many `characters`."""
        self.drain()
        lines = [*self._tail, self._partial] if self._partial else self._tail
        return last_lines(b"\n".join(lines).decode("utf-8", "replace").strip("\n"), characters)

    def drain(self) -> None:
        """Read the pipe's present content without waiting."""
        for _ in range(MAX_PENDING_BYTES // CHUNK_BYTES):
            if self._fd < 0 or self._read() <= 0:
                return

    def restart(self) -> None:
        """Start a new line, because another process will write into the same pipe."""
        self._end_line()
        self._tail.clear()

    def close(self) -> None:
        """Read the remaining data and close."""
        self._end_line()
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
            if self._log is not None:
                self._log.close()

    def _end_line(self) -> None:
        self.drain()
        if self._partial:
            self._pass_on(b"\n")

    def _readable(self, _events: int) -> None:
        if self._printer.full:
            self._loop.unwatch(self._fd)
            self._printer.when_room(self._resume)
        elif self._read() == 0:
            # All writers have closed the pipe. epoll would report this in every round.
            self._loop.unwatch(self._fd)

    def _resume(self) -> None:
        if self._fd >= 0:
            self._loop.watch(self._fd, READ, self._readable)

    def _read(self) -> int:
        """Read one chunk; returns its size, 0 if all writers have closed the pipe, or -1 if the pipe is empty."""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return -1
        if data:
            self._pass_on(data)
        return len(data)

    def _pass_on(self, data: bytes) -> None:
        # A carriage return ends a line too, because a progress bar would otherwise be an endless line.
        *lines, self._partial = (self._partial + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        while len(self._partial) > MAX_LINE_BYTES:
            lines.append(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]
        kept = [line for line in lines if b"dump" not in line or not re.search(_DUMP, line)]
        lines = kept
        if self._read_progress is not None and (lines or self._partial):
            # If the chunk is full, the unfinished line may end in the middle of a word, so it is left out.
            self._read_progress(lines, self._partial if len(data) < CHUNK_BYTES else b"")
        if not lines:
            return
        self._tail.extend(line[:MAX_LINE_BYTES] for line in lines)
        self._printer.write(b"".join(self._prefix + line + b"\n" for line in lines))
        if self._log is not None:
            self._log.write(b"\n".join(lines) + b"\n")


class AttemptOutput:
    """AttemptOutput prints the processes' output, keeps its newest part in the attempt's folder, and reads that part.

    A process's streams are named `<process>.out` and `<process>.err`.
    """

    def __init__(self, loop: Loop, settings: AgentSettings, folder: str, printers: Printers) -> None:
        self._loop, self._folder, self._printers = loop, folder, printers
        self.say = printers.say
        self.printed = Printed(settings, printers.say)
        self._pumps: dict[str, Pump] = {}

    def open_rank_pipes(self, processes: int, first_rank: int) -> None:
        for rank in range(first_rank, first_rank + processes):
            name = f"rank-{rank - first_rank}"
            out, err = (named_pipe(os.path.join(self._folder, f"{name}.{suffix}")) for suffix in ("out", "err"))
            self.pump(name, (out, err), f"[rank {rank}]: ", rank)

    def pump(self, process: str, streams: tuple[int, int], prefix: str, rank: Optional[int] = None) -> None:
        """Print a process's two streams from now on. `rank`: the rank whose progress the output may contain."""
        reader = None if rank is None else partial(self.printed.read, rank)
        for suffix, fd, printer in zip(("out", "err"), streams, self._printers):
            name = f"{process}.{suffix}"
            self._pumps[name] = Pump(self._loop, fd, prefix, printer, self.log_path(name), reader)

    def restart_rank(self, local_rank: int) -> None:
        """Prepare a rank's pipes for the process that replaces the rank's."""
        for suffix in ("out", "err"):
            self._pumps[f"rank-{local_rank}.{suffix}"].restart()

    def print_separator(self, attempt: int) -> None:
        """Print a line between attempts, because a container's log may contain several."""
        if attempt > 1:
            self._printers.stdout.write(b"--- attempt %d ---\n" % attempt)

    def log_path(self, name: str) -> str:
        """Returns the path of the file with a stream's newest part."""
        return os.path.join(self._folder, f"{name}.log")

    def last_lines(self, process: str) -> str:
        """Returns a process's last lines, which explain its end."""
        for name in (f"{process}.err", f"{process}.out"):
            text = conclusion(self._pumps[name].last_lines(MAX_STACKS_BYTES)) if name in self._pumps else ""
            if STACKS_MARK in text:
                # The text before the stacks explains the rank's end, and the long stacks would crowd it out.
                text = shorten_stacks(without_additions(self._tail(name))) or text
            if text:
                return text
        return ""

    def evidence(self, local_rank: int, *, by_torchrun: bool) -> str:
        """Returns a rank's last lines: its exception if torch's error file contains one, else its last output."""
        name = f"rank-{local_rank}"
        text = self._exception(local_rank, by_torchrun) or self.last_lines(name)
        return with_assertion(text, lambda: self._tail(f"{name}.err"))

    def raised_error(self, local_rank: int, traceback: str) -> str:
        """Returns the error in the traceback of an exception that a rank's Python has reported."""
        return with_assertion(conclusion(traceback), lambda: self._tail(f"rank-{local_rank}.err"))

    def _tail(self, name: str) -> str:
        if name in self._pumps:
            self._pumps[name].drain()
        return tail_of(self.log_path(name), MAX_STACKS_BYTES)

    def raised(self, local_rank: int, *, by_torchrun: bool) -> bool:
        """Returns whether torch's error file contains an exception of this rank that isn't due to a lost peer."""
        text = self._exception(local_rank, by_torchrun)
        return bool(text) and not broken_connection(text)

    def _exception(self, local_rank: int, by_torchrun: bool) -> str:
        if not by_torchrun:
            return read_error_file(os.path.join(self._folder, "error.json"))
        # Each process of torchrun adds a folder level with a new name.
        folder = os.path.join(self._folder, "torchrun")
        lives = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        files = (os.path.join(folder, life, "attempt_0", str(local_rank), "error.json") for life in lives)
        return next(filter(None, map(read_error_file, files)), "")

    def close(self) -> None:
        for pump in self._pumps.values():
            pump.close()


def named_pipe(path: str) -> int:
    """Make a named pipe and open it for reading.

    It is opened for writing too, so that reading never finds an end of file, even between two writers (fifo(7)).
    """
    unlink(path)
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)
