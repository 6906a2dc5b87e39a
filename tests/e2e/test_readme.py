"""The README is correct: its commands exist, its jobs are valid, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainmaster.cli import dtj, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
JOBS = [text for language, text in BLOCKS if language == "yaml" and "DistributedTrainingJob" in text]
COMMANDS = sorted(
    {
        match
        for language, text in BLOCKS
        if language in ("sh", "console", "bash")
        for match in re.findall(
            r"^(?:\$ )?(make [a-z-]+|trainmaster [a-z]+(?: [a-z]+)?|kubectl dtj [a-z]+)", text, re.MULTILINE
        )
    }
)


def test_it_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_it_names_exists(command: str) -> None:
    program, *rest = command.split()
    if program == "make":
        make = ["make", "--dry-run", "--always-make", *rest]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    app, arguments = (dtj.app, rest[1:]) if program == "kubectl" else (main.app, rest)
    shown = CliRunner().invoke(app, [*arguments, "--help"])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("text", JOBS, ids=lambda text: str(yaml.safe_load(text)["metadata"]["name"]))
def test_every_job_it_shows_is_valid(text: str) -> None:
    said = CliRunner().invoke(main.app, ["validate", "-"], input=text)
    assert said.exit_code == 0, said.output


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_every_file_it_links_to_is_there(target: str) -> None:
    assert (ROOT / target).exists()
