"""docs/checkpoints.md shows the output of `trainloop checkpoints` (`versions`); the page's commands are run here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.trainer.ranks import run_ranks
from tests.unit.docs.snippets import blocks, exchanges, pattern, plain
from trainloop import run
from trainloop.__main__ import main
from trainloop.config import parse_config

HEADING = "Checkpoints as versions"
#: The page's steps, and those of the shorter run made here.
STEPS = {"250": "2", "500": "4", "750": "6"}


@pytest.mark.torch
def test_the_guide_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(Path("README.md").read_text())
    options = {"path": str(tmp_path / "text.txt"), "context": 16, "layers": 2, "width": 8, "heads": 2, "dropout": 0.0}
    settings = {
        "task": {"name": "text", "options": options},
        "steps": 4,
        "batch": {"size": 4},
        "optimizer": {"lr": 0.004},
        "evaluation": {"every_steps": 2, "samples": 8},
        "checkpoint": {"path": str(tmp_path / "checkpoints"), "every_steps": 2},
        "metrics": {"path": str(tmp_path / "report"), "plot": False},
    }
    run_ranks(2, run.train, parse_config(settings))
    run_ranks(1, run.train, parse_config({**settings, "steps": 6, "optimizer": {"lr": 0.002}}))
    monkeypatch.chdir(tmp_path)
    [block] = [block for block in blocks("checkpoints.md", "console") if block.heading == HEADING]
    commands = exchanges(block)
    assert {command.split()[2] for command, _ in commands} == {
        "list", "show", "diff", "tag", "verify", "export", "prune"
    }  # fmt: skip
    for command, shown in commands:
        program, *arguments = shlex.split(command)
        assert program == "trainloop"
        capsys.readouterr()
        assert main([STEPS.get(argument, argument) for argument in arguments]) == 0
        printed = capsys.readouterr().out
        if " diff " in command:  # which layer changes most, and the unit of a number's size, depend on the run
            shown, printed = (
                re.sub(r"^  (blocks|positions|tokens|output|norm).*\n", "", text, flags=re.M)
                for text in (shown, printed)
            )
        shown, printed = (re.sub(r"\d \wi?B\b|\b[0-9a-f]{12,}", "0", text) for text in (shown, printed))
        shown, printed = (re.sub(r"\d(e-\d+)?\b", "0", text) for text in (shown, printed))
        assert pattern(shown).fullmatch(plain(printed)), f"{command} doesn't print what the page shows:\n{printed}"
