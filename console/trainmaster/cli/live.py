"""Redraws pictures while the user watches. Threads read the data, so a slow API server delays neither ages nor keys."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.client import ClientError, NotAllowed

# Interval between drawings while only ages change (seconds).
TICK_SECONDS = 1.0
Item = TypeVar("Item")
# A view draws data that was read before, with ages at the time of the call.
View = Callable[[], RenderableType]
Beside = Callable[[RenderableType], RenderableType]
_END = object()


def arrivals(
    *sources: Iterable[Item], seconds: float, found: queue.SimpleQueue[Any] | None = None
) -> Iterator[Item | None]:
    """Yields the items of all sources as they arrive until a source ends, and None after `seconds` without an item.

    Each source is read in a thread of its own. Other code may put None into `found`, which is then yielded. Raises a
    source's ClientError.
    """
    arrived = found or queue.SimpleQueue()

    def read(source: Iterable[Item]) -> None:
        try:
            for item in source:
                arrived.put(item)
            arrived.put(_END)
        except ClientError as error:
            arrived.put(error)

    for source in sources:
        threading.Thread(target=read, args=(source,), daemon=True).start()
    while True:
        try:
            item = arrived.get(timeout=seconds)
        except queue.Empty:
            item = None
        if item is _END:
            return
        if isinstance(item, ClientError):
            raise item
        yield item


def draw(console: SafeConsole, views: Iterable[View], beside: Beside = lambda picture: picture) -> None:
    """Draws each view on arrival, and the newest one every second, without asking the API server again.

    `beside` adds to each picture what is stale in it.
    """
    with Live(console=console, auto_refresh=False) as live:
        try:
            for view in _newest(arrivals(views, seconds=TICK_SECONDS)):
                live.update(beside(view()), refresh=True)
        except NotAllowed:
            # A user who lost the right mustn't keep the last picture.
            live.update(Text(), refresh=True)
            raise


def draw_full_screen(console: SafeConsole, views: Iterable[View], beside: Beside = lambda picture: picture) -> None:
    """Draws the views on the terminal's alternate screen until they end or the user leaves by q or Ctrl-C.

    The previous content then returns, and the last view is printed below it. Raises ClientError.
    """
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    resized = signal.signal(signal.SIGWINCH, lambda _signal, _frame: found.put(None))
    last: View | None = None
    try:
        with (
            _keys() as keys,
            suppress(KeyboardInterrupt),
            Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live,
        ):
            for last in _newest(arrivals(views, *keys, seconds=TICK_SECONDS, found=found)):
                live.update(beside(last()), refresh=True)
    except NotAllowed:
        last = None
        raise
    finally:
        signal.signal(signal.SIGWINCH, resized)
        if last is not None:
            console.print(beside(last()))


def _newest(found: Iterable[Item | None]) -> Iterator[Item]:
    """Yields each item as it arrives, and repeats the newest item for each None."""
    newest: Item | None = None
    for item in found:
        newest = newest if item is None else item
        if newest is not None:
            yield newest


@contextmanager
def _keys() -> Iterator[list[Iterator[None]]]:
    """Yields a source that ends when the user presses q or Ctrl-C, and no source if stdin isn't a terminal."""
    if not sys.stdin.isatty():
        yield []
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed() -> Iterator[None]:
        with suppress(OSError):
            while os.read(fd, 64)[:1] not in (b"q", b"Q", b"\x03", b""):
                yield None

    try:
        tty.setcbreak(fd)
        yield [pressed()]
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
