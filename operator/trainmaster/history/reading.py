"""The file is read here, in a few threads with a connection each, beside the one that writes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainmaster.history.answers import Answers

THREADS = 4
# Seconds for one answer.
READ_SECONDS = 10.0
# Seconds for which a stop waits for who reads.
CLOSE_SECONDS = 0.5
# SQLite's own steps between two looks at the clock.
_STEPS = 20_000


class TooSlow(Exception):
    """An answer took too long; one sentence says what to ask for instead."""


class Readers:
    """Readers are the threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="history-reader")
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
                await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        except TimeoutError:
            # The file's write-ahead log stays beside it, empty.
            return
        for answers in self._opened:
            answers.connection.close()

    async def read(self, ask: Callable[[Answers], Any]) -> bytes:
        """Returns an answer's JSON. Raises what `ask` does, UnusableFile, sqlite3.Error and TooSlow."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, ask)

    def _read(self, ask: Callable[[Answers], Any]) -> bytes:
        answers = self._answers()
        until = time.monotonic() + READ_SECONDS
        answers.connection.set_progress_handler(lambda: self._is_closed or time.monotonic() > until, _STEPS)
        try:
            return json.dumps(ask(answers), separators=(",", ":")).encode()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise TooSlow(
                    f"The answer took more than {READ_SECONDS:g} s; ask for less (limit, from, to)."
                ) from error
            raise

    def _answers(self) -> Answers:
        if getattr(self._own, "generation", None) != self._generation:
            generation = self._generation
            self._own.answers = Answers(self._file)
            self._opened.append(self._own.answers)
            self._own.generation = generation
        found: Answers = self._own.answers
        return found
