"""`make demo` is a new user's first command: it trains, prints where everything is, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "manifests/examples/reviews.yaml"

# One line; the value is a path below the folder.
SAID = re.compile(r"^(logs|checkpoint|curves) +(.+)$", re.MULTILINE)


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainmaster.cli.main", "demo", EXAMPLE, "--folder", str(folder)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200"},
        # A shell's background processes ignore SIGINT, and that is inherited through these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def left_over(folder: Path) -> list[str]:
    """Returns processes that use the demo's folder, in their command line, environment or working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            traces = [*command, *process.environ().values(), process.cwd()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if process.pid != os.getpid() and any(str(folder) in trace for trace in traces):
            found.append(" ".join(command))
    return found


def nothing_is_left(folder: Path) -> None:
    """Waits until no process is left: the kernel takes a moment to end killed ones."""
    deadline = time.monotonic() + 30
    while left := left_over(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_the_demo_trains_to_the_promised_accuracy_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = start(folder)
    output, _ = demo.communicate(timeout=570)
    assert demo.returncode == 0, output
    assert re.search(r"^result +Succeeded: .*accuracy 0\.(8[5-9]|9)", output, re.MULTILINE), output
    assert "distributedtrainingjob.trainmaster.dev/reviews created" in output
    said = dict(SAID.findall(output))
    assert set(said) == {"logs", "checkpoint", "curves"}, output
    assert sorted(path.name for path in (ROOT / said["logs"]).iterdir()) == ["worker-0.log", "worker-1.log"]
    assert (ROOT / said["logs"] / "worker-0.log").stat().st_size > 0
    assert (ROOT / said["checkpoint"]).is_dir()
    assert (ROOT / said["curves"]).read_bytes().startswith(b"\x89PNG")
    nothing_is_left(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wanted", [signal.SIGINT, signal.SIGTERM], ids=lambda wanted: wanted.name)
def test_the_demo_stops_everything_when_it_is_interrupted(tmp_path: Path, wanted: signal.Signals) -> None:
    folder = tmp_path / "demo"
    demo = start(folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "Running" in line:
            break
    demo.send_signal(wanted)
    output = demo.stdout.read()
    assert demo.wait(timeout=120) == 130, output
    nothing_is_left(folder)


def test_an_example_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", "demo", "nope.yaml", "--folder", str(tmp_path / "demo")],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: nope.yaml doesn't exist: run the demo in the project's folder, or name a file.\n"
