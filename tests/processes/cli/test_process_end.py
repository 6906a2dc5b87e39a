"""A command's process ends with its code and its whole output, and none of its threads can delay it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
# A thread that reads from a silent connection, and a command that prints more than a pipe can hold.
PROGRAM = """
import atexit, socket, sys, threading
import typer
from trainmaster.cli.program import short_lived

here, there = socket.socketpair()
file = here.makefile("rb")
threading.Thread(target=file.read, daemon=True).start()
with short_lived():
    atexit.register(print, "last words")
    print("x" * 200_000)
    sys.exit(CODE)
"""


@pytest.mark.parametrize(("code", "expected"), [("None", 0), ("3", 3), ("'a reason'", 1)])
def test_the_code_and_all_output_leave_though_a_thread_still_reads(code: str, expected: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CODE", code)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (expected, "x" * 200_000 + "\nlast words\n")
    assert ended.stderr == ("a reason\n" if expected == 1 else "")


def test_an_error_that_nobody_caught_is_printed() -> None:
    program = PROGRAM.replace("sys.exit(CODE)", "raise KeyError('oops')")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.endswith("KeyError: 'oops'\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_a_sentence_or_a_code(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [BIN / "trainmaster", "crd"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (1, "error: no space is left where the output or a file goes\n")


def test_without_a_stream_to_write_to_a_command_still_ends_well() -> None:
    assert subprocess.run(["sh", "-c", f"{BIN}/trainmaster --version >&-"], timeout=60).returncode == 0
