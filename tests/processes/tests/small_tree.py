"""A small tree of tests, which fail as often as a case wants, serves the programs that run tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: For each folder of tests, each test's name and how often it fails.
Cases = dict[str, list[tuple[str, int]]]
# Fails as often as its parameter says, and counts in a file because each try is a separate process.
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
# Two of xdist's processes show what six do.
CONFTEST = """
import pytest

pytest_plugins = ["tests.failed_tests"]

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if config.option.numprocesses:
        config.option.numprocesses = 2
"""


def run(folder: Path, cases: Cases, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the programs in tests/ on a tree with tests for the cases; other folders of tests run nothing."""
    (folder / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow: a soak']\npythonpath = ['.']\n"
    )
    (folder / "Makefile").write_text("lint types generated:\n\t@true\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    patterns = "|".join(f"*' {place}/test_'*|*' {place}'|*' {place} local/{place}'" for place in cases)
    python.write_text(f'#!/bin/sh\ncase "$*" in {patterns}) exec {sys.executable} "$@"; esac\n')
    python.chmod(0o755)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "tests").mkdir(exist_ok=True)
    for name in ("tests/__init__.py", "tests/failed_tests.py", f"tests/{script}"):
        shutil.copy(ROOT / name, folder / name)
    for place, names in cases.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / "local" / place).mkdir(parents=True)
        (folder / place / "test_flaky.py").write_text(FAILS.format(cases=names))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRAINMASTER"))}
    # Many processes are started, and each would import all installed plug-ins.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        ["bash", str(folder / "tests" / script), *arguments],
        env={**environment, **plugins, "VENV": str(folder)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
