"""The picture is drawn anew when something changed, when the terminal has another size, and every second.

A thread reads, so that a slow API server never holds the keys up: q and Ctrl-C leave at once. The terminal's other
screen is used, so that what stood there comes back; the last picture stays below it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.top.asking import Asking, Picture
from trainmaster.cli.top.view import JobPicture, JobsPicture
from trainmaster.client import ClientError, JobClient, JobNotFound, TrainingJob

# Seconds between two readings, and between two drawings where nothing changed: ages do.
READ_SECONDS, TICK_SECONDS = 2.0, 1.0
# Values that a line of blocks can show.
MAX_SEEN = 120

Draw = Callable[[], RenderableType]


class Reading:
    """Reading is a thread that reads what is to be drawn, again and again, and wakes who draws it."""

    def __init__(self, read: Callable[[], Draw | None]) -> None:
        self._read = read
        self._stop = threading.Event()
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._awake, False)
        self.draw: Draw | None = None
        self.error: ClientError | None = None
        self.over = False

    @property
    def awake(self) -> int:
        """Returns the descriptor that can be read when there is something new."""
        return self._awake

    def start(self) -> None:
        """Starts to read."""
        threading.Thread(target=self._run, daemon=True).start()

    def wake(self) -> None:
        """Wakes who draws."""
        with suppress(BlockingIOError):
            os.write(self._wake, b"x")

    def slept(self) -> None:
        """Forgets that it was woken."""
        with suppress(BlockingIOError):
            os.read(self._awake, 4096)

    def stop(self) -> None:
        """Ends the thread, when it looks next."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                draw = self._read()
            except ClientError as error:
                self.error = error
                self.over = True
            else:
                self.over = draw is None
                self.draw = draw or self.draw
            self.wake()
            if self.over or self._stop.wait(READ_SECONDS):
                return


def job_reading(jobs: JobClient, job: TrainingJob) -> Callable[[], Draw | None]:
    """Returns how to read the picture of one job; None follows the picture of its end."""
    asking = Asking(jobs)
    losses: deque[float] = deque(maxlen=MAX_SEEN)
    speeds: deque[float] = deque(maxlen=MAX_SEEN)
    ended = False

    def read() -> Draw | None:
        nonlocal ended
        if ended:
            return None
        try:
            now = jobs.get(job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched.") from error
        if now.uid != job.uid:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched; another has its name now.")
        picture = asking.picture(now)
        remember(picture, losses, speeds)
        ended = now.finished
        return lambda: JobPicture(picture, losses, speeds)

    return read


def jobs_reading(jobs: JobClient, *, all_namespaces: bool) -> Callable[[], Draw | None]:
    """Returns how to read the rows of all jobs that go on."""

    def read() -> Draw | None:
        going_on = [job for job in jobs.list(all_namespaces=all_namespaces) if not job.finished]
        if not going_on:
            where = "any namespace" if all_namespaces else f"namespace {jobs.namespace}"
            return lambda: Text(f"No job goes on in {where}.")
        return lambda: JobsPicture(going_on, namespaces=all_namespaces)

    return read


def remember(picture: Picture, losses: deque[float], speeds: deque[float]) -> None:
    """Adds the newest loss and speed to what was seen, where they are new."""
    progress = picture.job.status.progress
    if progress is None:
        return
    if progress.loss is not None and (not losses or losses[-1] != progress.loss):
        losses.append(progress.loss)
    if progress.samples_per_second is not None and (not speeds or speeds[-1] != progress.samples_per_second):
        speeds.append(progress.samples_per_second)


def show(console: SafeConsole, read: Callable[[], Draw | None]) -> None:
    """Shows what is read until the user leaves or there is nothing more to come. Raises ClientError."""
    reading = Reading(read)
    reading.start()
    with _keys() as keys, _resizes(reading.wake):
        _until_left(console, reading, keys)
    reading.stop()
    if reading.draw is not None:
        console.print(reading.draw())
    if reading.error is not None:
        raise reading.error


def _until_left(console: SafeConsole, reading: Reading, keys: int | None) -> None:
    watched = [reading.awake, *([] if keys is None else [keys])]
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live,
    ):
        while not reading.over:
            if reading.draw is not None:
                live.update(reading.draw(), refresh=True)
            ready, _, _ = select.select(watched, [], [], TICK_SECONDS)
            if reading.awake in ready:
                reading.slept()
            if keys is not None and keys in ready and os.read(keys, 64)[:1] in (b"q", b"Q", b"\x03", b""):
                return


@contextmanager
def _keys() -> Iterator[int | None]:
    """Has single keys come as they are pressed; yields stdin's descriptor, None where it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _resizes(wake: Callable[[], None]) -> Iterator[None]:
    def resized(_signal: int, _frame: Any) -> None:
        wake()

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
