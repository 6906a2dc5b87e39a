"""The file that names the ranks' group lies beside the FIFOs that wake them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainmaster_operator.agent.process.state_folder import make_fifos, saving_seconds, wake, write_group
from trainmaster_operator.wire.assignment import Assignment


def test_an_agent_whose_process_has_a_ranks_number_writes_the_file_and_leaves_the_fifo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod, the agent is process 1, and 1 may also be a rank's number."""
    path = str(tmp_path / "group")
    make_fifos(path, [0, 1])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    fifo = os.open(f"{path}.1", os.O_RDWR | os.O_NONBLOCK)
    write_group(path, Assignment("job", 2, (0, 1), None, ("10.0.0.1", "10.0.0.2"), 29_000), 1)
    wake(f"{path}.1")
    assert os.read(fifo, 64) == b"."
    os.close(fifo)
    assert json.loads(Path(path).read_text())["attempt"] == 2
    assert {file.name: file.is_fifo() for file in tmp_path.iterdir()} == {
        "group": False,
        "group.0": True,
        "group.1": True,
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2.5", 2.5),
        ("3\n", 3.0),
        ("0", 0.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("1" + "0" * 400, 1e63),
        ("\x00\xff", None),
    ],
)
def test_the_file_holds_a_number_of_seconds_or_counts_as_missing(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    path = tmp_path / "saving.0"
    path.write_text(text)
    assert saving_seconds(str(path)) == seconds


def test_what_is_no_file_counts_as_missing_and_is_not_waited_for(tmp_path: Path) -> None:
    assert saving_seconds(str(tmp_path / "saving.0")) is None
    assert saving_seconds(str(tmp_path)) is None
    os.mkfifo(tmp_path / "saving.1")
    assert saving_seconds(str(tmp_path / "saving.1")) is None
