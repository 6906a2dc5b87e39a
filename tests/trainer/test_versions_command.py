"""`trainloop checkpoints` behaves like other commands: usage, help, exit codes, pipes, completion, short numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.damage import written
from tests.trainer.ranks import ROOT
from trainloop.checkpoints import storage
from trainloop.versions import output


@pytest.mark.parametrize(
    "line",
    ["", "lst x", "list", "show x", "prune x", "prune x --keep 0", "list x -o yaml", "tag -d x", "tag x 1", "diff x 1"],
)
def test_what_is_asked_wrongly_has_code_2_and_the_usage(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x"), 1)
    printed = checkpoints(line)
    assert printed.code == 2 and printed.errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("list x more", "trainloop checkpoints list: error: unrecognized arguments: more"),
        ("show x 1 --outptu json", "trainloop checkpoints show: error: unrecognized arguments: --outptu json"),
        ("prune x --keep many", "argument --keep: 'many' is no whole number of at least 1"),
        ("diff x 1 2 --top 0", "argument --top: '0' is no whole number of at least 1"),
    ],
)
def test_what_is_asked_wrongly_is_answered_by_the_command_that_was_asked(
    line: str, error: str, checkpoints: Any
) -> None:
    printed = checkpoints(line)
    assert printed.code == 2 and error in printed.errors
    assert printed.errors.startswith(f"usage: trainloop checkpoints {line.split()[0]} ")


@pytest.mark.parametrize("command", ["list", "show", "diff", "tag", "verify", "export", "prune"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help_with_an_example_that_fits_a_terminal(
    command: str, option: str, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = checkpoints(f"{command} {option}")
    assert printed.code == 0 and f"$ trainloop checkpoints {command} " in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []


@pytest.mark.torch
def test_list_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    written(tmp_path, 1)
    for arguments in (["list", str(tmp_path)], ["verify", str(tmp_path)], ["-h"], ["list", "-h"], ["list", "/nowhere"]):
        text = (
            "import sys; from trainloop.__main__ import main\n"
            f"try: main({['checkpoints', *arguments]!r})\n"
            "except SystemExit: pass\n"
            "assert not {'torch', 'numpy', 'pydantic', 'trainloop.trainer'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, timeout=60)


def test_a_reader_that_goes_is_no_error(tmp_path: Path) -> None:
    written(tmp_path, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainloop", "checkpoints", "list", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""


def test_the_shell_completes_commands_and_checkpoints(tmp_path: Path) -> None:
    written(tmp_path, 1)
    storage.set_tag(storage.Checkpoint(1, 1, tmp_path), "good")

    def completed(line: str) -> set[str]:
        answer = tmp_path / "answer"
        subprocess.run(
            [sys.executable, "-m", "trainloop"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "_ARGCOMPLETE": "1",
                "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
                "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
                "COMP_LINE": line,
                "COMP_POINT": str(len(line)),
                "_ARGCOMPLETE_IFS": "\n",
            },
            check=True,
            timeout=60,
        )
        return set(answer.read_text().split())

    assert completed("trainloop checkpoints l") == {"list"}
    assert completed(f"trainloop checkpoints show {tmp_path} ") >= {"latest", "step-000000001.1", "good"}
    assert completed("trainloop --conf") == {"--config"}


def test_ages_and_sizes_read_as_kubectl_has_them() -> None:
    now = time.time()
    ages = {0: "0s", 59: "59s", 60: "1m", 192: "3m12s", 7200: "2h", 200_000: "2d7h", 86400 * 30 + 5: "30d", -50: "0s"}
    assert {seconds: output.age(now - seconds) for seconds in ages} == ages
    assert [output.size(count) for count in (0, 1023, 1024, 3 << 29, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5.0 TiB"
    ]  # fmt: skip
    assert json.loads(output.document({"a": float("nan"), "b": [float("inf"), 1.5]})) == {"a": "nan", "b": ["inf", 1.5]}
