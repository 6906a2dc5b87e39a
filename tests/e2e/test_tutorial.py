"""docs/tutorial.md is correct: its commands are run one after another, in a folder of their own.

The output below a command must match what it prints, except for numbers, times, blanks and line breaks; `…` stands for
anything. A reader looks again until a job has got as far as the page shows. The test does the same with commands that
only show something.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.docs.snippets import blocks, exchanges, pattern, plain

ROOT = Path(__file__).resolve().parents[2]
PAGE = "tutorial.md"
# Imports of torch share this machine with other tests.
PATIENCE = 240.0
_LOOKS = re.compile(r"kubectl (dtj (status|logs)|get) ")


class Shell:
    """Runs a shell in an empty folder, whose kubectl uses the local cluster that is made there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(folder / ".trainmaster/local/kubeconfig"),
            "COLUMNS": "160",
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=self.environ, cwd=self.folder, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    # At the end of the page nothing is left.
    with suppress(OSError, ValueError):
        os.kill(int((tmp_path / "operator.pid").read_text()), signal.SIGKILL)
    made.run("trainmaster local down")


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_every_command_does_what_the_page_shows(shell: Shell) -> None:
    for block in blocks(PAGE, "console"):
        for command, shown in exchanges(block):
            deadline = time.monotonic() + (PATIENCE if _LOOKS.match(command) else 0.0)
            while True:
                said = shell.run(command)
                if pattern(shown).fullmatch(plain(said)):
                    break
                assert time.monotonic() < deadline, f"$ {command}\n{said}\nisn't what the page shows:\n{shown}"
                # Each look starts a Python.
                time.sleep(2.0)
            print(f"$ {command}\n{said}")


def test_what_it_installs_is_there_to_make() -> None:
    [install] = blocks(PAGE, "sh")
    [target] = re.findall(r"^make (\S+)$", install.text, re.MULTILINE)
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
