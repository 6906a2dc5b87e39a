"""This module requests ranks' stacks safely, finds them in the output, and shortens them.

A Python rank prints the stacks of all its threads at SIGUSR2 if it has registered `faulthandler` for the signal (as the
bundled loop does). The signal's default action would kill the rank, so the agent first asks the kernel whether the rank
catches SIGUSR2. The rank prints into `TRAINMASTER_STACKS_FILE.<rank>`, or into stderr, which the agent also keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from trainmaster_operator.agent.planner.classification import FATAL_ERROR
from trainmaster_operator.agent.process import children

STACKS_SIGNAL = signal.SIGUSR2
STACKS_MARK = "most recent call first"
"""faulthandler prints this in the line above each thread's stack."""
# faulthandler prints "Thread 0x00007f... (most recent call first):" or "Current thread 0x...", and py-spy prints
# 'Thread 123 (idle): "MainThread"'.
_THREAD = r"(?m)^(?:Current thread|Thread) (?:0x[0-9a-f]+|\d+)\b"
_LIBRARY = re.compile(r"(?:^|/)(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|^(?:torch|threading|multiprocessing)/")
MAX_STACKS_BYTES = 65_536
BEFORE_CHARACTERS, AFTER_CHARACTERS = 800, 1_100


def ask_for_stacks(pid: int) -> bool:
    """Ask a rank to print its stacks. If it has no handler, the signal would kill it: sends nothing, returns False."""
    target = children.signal_target(pid, STACKS_SIGNAL)
    if children.catches(target, STACKS_SIGNAL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, STACKS_SIGNAL)
            return True
    return False


def shorten_stacks(text: str) -> str:
    """Returns the text before a fatal error's stacks, and the stack of the thread at fault.

    Returns "" if there was no fatal error, because stacks that the agent requested don't explain a later end.
    """
    at = text.rfind(FATAL_ERROR)
    if at < 0:
        return ""
    threads = threads_of(text[at:])
    current = next((thread for thread in threads if thread.startswith("Current")), threads[0] if threads else "")
    head = text[at:].partition("\n")[0]
    kept = (text[:at][-BEFORE_CHARACTERS:].strip("\n"), head, current[:AFTER_CHARACTERS])
    return "\n".join(filter(None, kept))


def has_stacks(text: str) -> bool:
    """Returns whether a text contains stacks by faulthandler or py-spy."""
    return re.search(_THREAD, text) is not None


def threads_of(text: str) -> list[str]:
    """Returns the threads in faulthandler's or py-spy's output, the main thread first.

    faulthandler prints the newest thread first and the main thread last. py-spy prints the main thread's name.
    """
    starts = [match.start() for match in re.finditer(_THREAD, text)]
    blocks = [_thread(text[start:end]) for start, end in zip(starts, [*starts[1:], len(text)])]
    main = next((block for block in blocks if "MainThread" in block.partition("\n")[0]), blocks[-1] if blocks else "")
    return sorted(blocks, key=lambda block: block is not main)


class Frame(NamedTuple):
    """Frame is one frame of a stack."""

    file: str
    line: int
    function: str


def main_frames(stacks: str) -> list[Frame]:
    """Returns the main thread's frames, the newest first; empty without a stack."""
    main = "\n".join(threads_of(stacks)[:1])
    found = re.finditer(r'^ *File "([^"\n]+)", line (\d+) in (.*)$|^ *(\S+) \(([^():\n]+):(\d+)\)$', main, re.MULTILINE)
    return [Frame(each[1] or each[5], int(each[2] or each[6]), (each[3] or each[4]).strip()) for each in found]


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """Returns the newest frame outside of Python's own library and of installed packages, else the newest frame."""
    own = (frame for frame in frames if not _LIBRARY.search(frame.file))
    return next(own, next(iter(frames), None))


def collective_of(frames: Sequence[Frame]) -> str:
    """Returns the collective that the frames are in; empty if it is none, or isn't known."""
    if any(frame.function == "_engine_run_backward" for frame in frames):
        return "backward's all_reduce"
    called = [frame.function for frame in frames if "torch/distributed/distributed_c10d.py" in frame.file]
    return next((name for name in reversed(called) if not name.startswith("_") and name != "wrapper"), "")


def _thread(text: str) -> str:
    """Returns a thread's head and frames, without later output (such as a launcher's lines about a rank's end)."""
    head, *lines = text.splitlines()
    end = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    return "\n".join((head, *lines[:end])).strip("\n")


def main_thread_first(text: str) -> str:
    """Returns the same stacks with the main thread first, so that a limit cuts off the main thread last."""
    return "\n".join(threads_of(text)) or text.strip("\n")


def shortened(text: str, limit: int) -> str:
    """Returns the beginning of a text, which takes at most `limit` bytes as JSON."""
    size = len(json.dumps(text))
    while size > limit and text:
        text = text[: min(len(text) - 1, len(text) * limit // size)]
        size = len(json.dumps(text))
    return text


def tail_of(path: str, limit: int, start: int = 0) -> str:
    """Returns a file's end, from `start` on and at most `limit` bytes; empty if it can't be read."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            # If the log is shorter than `start`, it was rotated: read it from its beginning.
            start = start if start <= end else 0
            file.seek(max(start, end - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
