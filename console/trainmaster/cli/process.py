"""A command's process leaves out what Python does at its start and its end for processes that live long."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Python's own threshold is 700. What a command imports stays: to look through it for garbage took 10 % of its time.
OBJECTS_BETWEEN_COLLECTIONS = 50_000
# Python's own exit code when its output couldn't be written to the end.
UNWRITTEN = 120


@contextmanager
def short_lived() -> Iterator[None]:
    """Runs a command's process, which ends with the code of the SystemExit that leaves this.

    The end comes after the functions that the command gave `atexit`, but without taking the interpreter down: that
    takes as long as the request to the API server, and a thread that still reads from a connection can hang it.
    https://docs.python.org/3/library/threading.html#thread-objects (daemon threads)
    """
    codes: list[int] = []
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(_end, codes)
    try:
        yield
    except SystemExit as leaving:
        if isinstance(leaving.code, int | None):
            codes.append(leaving.code or 0)
        raise


def _end(codes: list[int]) -> None:
    if not codes:
        # An error that nobody caught is printed, or a text is what the process leaves with.
        return
    code = codes[-1]
    for stream in (sys.stdout, sys.stderr):
        try:
            # It is None where the process was started without it.
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # Nobody reads it, its disk is full, or it is closed.
            code = code or UNWRITTEN
    os._exit(code)
