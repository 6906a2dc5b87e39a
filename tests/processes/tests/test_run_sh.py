"""tests/run.sh, run for real on a small tree: a cluster test that fails is run once more, alone, and named.

Its last lines say how long each stage took, and what was left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Fails as often as its parameter says, and counts in a file because each try is a process of its own.
FAILS = """
import pathlib
import pytest

@pytest.mark.parametrize(("name", "failures"), {cases})
def test_fails(name, failures):
    tries = pathlib.Path(f"{{name}}.tries")
    tried = int(tries.read_text()) if tries.exists() else 0
    tries.write_text(str(tried + 1))
    assert tried >= failures
"""


def run(folder: Path, cases: list[tuple[str, int]]) -> subprocess.CompletedProcess[str]:
    """tests/run.sh on a tree whose cluster tests fail so many times each; its other stages run nothing."""
    (folder / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow: a soak']\npythonpath = ['.']\n"
    )
    (folder / "Makefile").write_text("lint types generated:\n\t@true\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *tests/cluster/test_*|*/tests/cluster) exec {sys.executable} "$@"; esac\n'
    )
    python.chmod(0o755)
    (folder / "tests" / "cluster").mkdir(parents=True, exist_ok=True)
    (folder / "local" / "tests" / "cluster").mkdir(parents=True)
    for name in ("conftest.py", "tests/__init__.py", "tests/run.sh", "tests/fast_set.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tests" / "cluster" / "test_flaky.py").write_text(FAILS.format(cases=cases))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRAINMASTER"))}
    return subprocess.run(
        ["bash", str(folder / "tests" / "run.sh")],
        env={**environment, "VENV": str(folder)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.parametrize(
    ("cases", "code", "flaky"),
    [
        pytest.param([("a", 1), ("b", 1)], 0, ["a", "b"], id="two are flaky"),
        pytest.param([("a", 1), ("broken", 9)], 1, ["a"], id="one fails again"),
        pytest.param([("a", 1), ("b", 1), ("c", 1)], 1, [], id="more than two"),
    ],
)
def test_failed_cluster_tests_run_once_more(
    tmp_path: Path, cases: list[tuple[str, int]], code: int, flaky: list[str]
) -> None:
    done = run(tmp_path, cases)
    assert done.returncode == code, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if line.startswith("!!!! FLAKY: ")]
    assert sorted(line.partition("[")[2].partition("-")[0] for line in named) == flaky
    assert ("The run has failed." in done.stdout) == bool(code)
    tries = {name: int((tmp_path / f"{name}.tries").read_text()) for name, _ in cases}
    assert re.search(r"^ +\d+ s  cluster \(.*\n(.*\n)* +\d+ s  all\nLeft out: the soaks", done.stdout, re.MULTILINE)
    once_more = len([name for name, failures in cases if failures]) <= 2
    assert tries == {name: 1 + (failures > 0 and once_more) for name, failures in cases}


def test_a_cluster_stage_that_does_not_come_to_its_end_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "tests" / "cluster").mkdir(parents=True)
    (tmp_path / "tests" / "cluster" / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    done = run(tmp_path, [("sound", 0)])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FLAKY" not in done.stdout
