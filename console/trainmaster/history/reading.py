"""The file is read here, in a few threads with a connection each, beside the one that writes.

Long answers (curves, heat, logs, evidence) have threads of their own, so that a list never waits for one of them.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.history.answers import Answers

SHORT_THREADS, LONG_THREADS = 2, 2
# Seconds for one answer, and for the wait until a thread is free for it.
READ_SECONDS, WAIT_SECONDS = 10.0, 30.0
# Seconds for which a stop waits for who reads.
CLOSE_SECONDS = 0.5
# SQLite's own steps between two looks at the clock.
_STEPS = 20_000
# Answers that are longer are compressed for who takes it: gzip, at a level that takes half of the default's time.
_COMPRESSED_BYTES, _GZIP, _LEVEL = 4_096, 31, 4

# Items of a list that are encoded at once.
_ITEMS, _NESTED_ITEMS = 2_000, 4


class TooSlow(Exception):
    """An answer took too long; one sentence says what to ask for instead."""


class Busy(Exception):
    """No thread became free; one sentence says so."""


@dataclass(frozen=True)
class Body:
    """Body is an answer's JSON, compressed or not."""

    data: bytes
    is_compressed: bool = False


class Readers:
    """Readers are the threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="history-reader")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="history-drawer")
        self._own = threading.local()
        # Of the file: another one may be in its place after a damage.
        self._generation = 0
        self._is_closed = False
        self._opened: list[Answers] = []

    def begin_anew(self) -> None:
        """Opens the file again for all that is read from now on."""
        self._generation += 1

    async def close(self) -> None:
        """Ends what is being read, which nobody asks for any more, and closes the file."""
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for threads in (self._short, self._long):
                    await asyncio.to_thread(threads.shutdown, cancel_futures=True)
        except TimeoutError:
            # The file's write-ahead log stays beside it, empty.
            return
        for answers in self._opened:
            answers.connection.close()

    async def read(self, ask: Callable[[Answers], Any], *, is_long: bool = False, compress: bool = False) -> Body:
        """Returns an answer. Raises what `ask` does, UnusableFile, sqlite3.Error, TooSlow and Busy."""
        threads = self._long if is_long else self._short
        reading = asyncio.get_running_loop().run_in_executor(threads, self._read, ask, compress)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await reading
        except TimeoutError as error:
            raise Busy(f"Others are being answered for {WAIT_SECONDS:g} s already; try again.") from error

    def _read(self, ask: Callable[[Answers], Any], compress: bool) -> Body:
        answers = self._answers()
        until = time.monotonic() + READ_SECONDS

        def is_over() -> bool:
            return self._is_closed or time.monotonic() > until

        def check() -> None:
            if is_over():
                raise _too_slow()

        answers.check = check
        answers.connection.set_progress_handler(is_over, _STEPS)
        try:
            body = "".join(_pieces(ask(answers))).encode()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise _too_slow() from error
            raise
        if not compress or len(body) <= _COMPRESSED_BYTES:
            return Body(body)
        # Here, and not in the loop, which others wait for.
        packing = zlib.compressobj(_LEVEL, wbits=_GZIP)
        return Body(packing.compress(body) + packing.flush(), is_compressed=True)

    def _answers(self) -> Answers:
        if getattr(self._own, "generation", None) != self._generation:
            generation = self._generation
            self._own.answers = Answers(self._file)
            self._opened.append(self._own.answers)
            self._own.generation = generation
        found: Answers = self._own.answers
        return found


def _pieces(value: Any) -> Iterator[str]:
    """Yields JSON in pieces: json.dumps lets no other thread run, and of a heat map it takes a tenth of a second."""
    if isinstance(value, dict):
        before = "{"
        for name, each in value.items():
            yield f"{before}{json.dumps(name)}:"
            yield from _pieces(each)
            before = ","
        yield "}" if value else "{}"
    elif isinstance(value, list) and value:
        size = _NESTED_ITEMS if isinstance(value[0], (list, dict)) else _ITEMS
        for first in range(0, len(value), size):
            yield "," if first else "["
            yield json.dumps(value[first : first + size], separators=(",", ":"))[1:-1]
        yield "]"
    else:
        yield json.dumps(value)


def _too_slow() -> TooSlow:
    return TooSlow(f"The answer took more than {READ_SECONDS:g} s; ask for less (limit, from, to).")
