"""Tests look at the checkpoints of real runs: one that continued with another rate and more ranks, and a
sharded one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop import run
from trainloop.__main__ import main

FULL, SHARDED = "checkpoints", "sharded"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns steps 2, 4 and 6 of one rank, 8 and 10 of two with another rate; and 2 and 4 of two ranks in parts."""
    folder = tmp_path_factory.mktemp("saved")
    full = {"path": str(folder / FULL), "every_steps": 2, "keep": 10, "best": "accuracy"}
    settings: dict[str, Any] = {"checkpoint": full, "evaluation": {"every_steps": 2}}
    run_ranks(1, run.train, config(folder, **settings))
    run_ranks(2, run.train, config(folder, **settings, steps=10, optimizer={"lr": 0.02, "max_norm": 0.5}))
    sharded = {"path": str(folder / SHARDED), "every_steps": 2, "format": "sharded"}
    run_ranks(2, run.train, config(folder, checkpoint=sharded, parallel={"strategy": "fsdp"}, steps=4))
    return folder


@pytest.fixture
def saved(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a copy of both runs, which is the working directory."""
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


class Printed(str):
    """Holds a command's output, with its exit code."""

    code: int
    errors: str


@pytest.fixture
def checkpoints(capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns a function that runs `trainloop checkpoints …`; the command line is split at blanks."""

    def call(line: str) -> Printed:
        try:
            code = main(["checkpoints", *line.split()])
        except SystemExit as end:  # argparse ends the command so
            code = int(end.code or 0)
        captured = capsys.readouterr()
        printed = Printed(captured.out)
        printed.code, printed.errors = code, captured.err
        return printed

    return call
