"""Shows running jobs live: the picture is redrawn after changes, when the terminal's size changes, and every second.

A thread reads, so that a slow API server never blocks the keys: q and Ctrl-C take effect at once. The picture uses the
terminal's alternate screen, so that the previous content returns. The last picture is then printed below it.
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

from trainmaster.cli.arguments import none_found
from trainmaster.cli.console import SafeConsole
from trainmaster.cli.events import Owners, events_of
from trainmaster.cli.top_picture import JobPicture, JobsPicture, Picture
from trainmaster.client import ClientError, JobClient, JobNotFound, NotAllowed, RankMetrics, TrainingJob

# Interval between readings, and between drawings while only ages change (seconds).
READ_SECONDS, TICK_SECONDS = 2.0, 1.0
# Maximum number of values in a line of blocks.
MAX_SEEN = 120
_PODS = "its pods"

Draw = Callable[[], RenderableType]


class Asking:
    """Asking reads a job's pods, newest Events and ranks. It doesn't repeat a forbidden request.

    If the user lacks a right (to `pods/proxy`, pods or Events), the rest is shown with a message about what is missing.
    """

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._forbidden: dict[str, str] = {}

    def picture(self, job: TrainingJob) -> Picture:
        """Returns a job's current picture. Raises ClientError."""
        pods = self._allowed(_PODS, lambda: self._jobs.pods(job.name)) or []
        events = self._allowed("its events", lambda: events_of(self._jobs.events(), Owners.of([job]))) or []
        ranks: tuple[RankMetrics, ...] = ()
        missing = list(self._forbidden.values())
        if job.phase == "Running" and _PODS not in self._forbidden:
            ranks, why = self._metrics(job)
            missing += [why] if why else []
        return Picture(job, pods, ranks, events, tuple(missing))

    def _allowed(self, what: str, ask: Callable[[], Any]) -> Any:
        if what in self._forbidden:
            return None
        try:
            return ask()
        except NotAllowed as error:
            self._forbidden[what] = f"(without {what}: {error})"
            return None

    def _metrics(self, job: TrainingJob) -> tuple[tuple[RankMetrics, ...], str]:
        """Returns each rank's figures, or the reason why there are no figures."""
        try:
            found = self._jobs.metrics(job.name)
        except JobNotFound:
            return (), ""
        if not found.ranks and found.silent:
            return (), f"(without figures of each rank: {next(iter(found.silent.values()))})"
        return found.ranks, ""


def job_reading(jobs: JobClient, job: TrainingJob) -> Callable[[], Draw | None]:
    """Returns a function that reads one job's picture. After the job's last picture, the function returns None."""
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
        if (progress := now.status.progress) is not None:
            for value, seen in ((progress.loss, losses), (progress.samples_per_second, speeds)):
                if value is not None and (not seen or seen[-1] != value):
                    seen.append(value)
        ended = now.finished
        return lambda: JobPicture(picture, losses, speeds)

    return read


def jobs_reading(jobs: JobClient, *, all_namespaces: bool) -> Callable[[], Draw | None]:
    """Returns a function that reads the rows of all unfinished jobs."""

    def read() -> Draw | None:
        unfinished = [job for job in jobs.list(all_namespaces=all_namespaces) if not job.finished]
        if not unfinished:
            return lambda: Text(none_found(jobs, all_namespaces, kind="unfinished jobs"))
        return lambda: JobsPicture(unfinished, namespaces=all_namespaces)

    return read


class Reading:
    """Reading is a thread that reads pictures repeatedly, and wakes the drawing thread through a pipe."""

    def __init__(self, read: Callable[[], Draw | None]) -> None:
        self._read = read
        self._stop = threading.Event()
        self.awake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self.awake, False)
        self.draw: Draw | None = None
        self.error: ClientError | None = None
        self.over = False

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def wake(self) -> None:
        """Makes `awake` readable."""
        with suppress(BlockingIOError):
            os.write(self._wake, b"x")

    def slept(self) -> None:
        """Empties `awake`."""
        with suppress(BlockingIOError):
            os.read(self.awake, 4096)

    def stop(self) -> None:
        """Ends the thread after its current reading."""
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


def show(console: SafeConsole, read: Callable[[], Draw | None]) -> None:
    """Shows the pictures until the user leaves or there are no more pictures. Raises ClientError."""
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
    """Makes keys readable as they are pressed. Yields stdin's descriptor, or None if stdin isn't a terminal."""
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
    before = signal.signal(signal.SIGWINCH, lambda _signal, _frame: wake())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
