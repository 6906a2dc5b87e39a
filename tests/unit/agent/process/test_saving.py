"""A rank asks for time to write its state by a file that may hold anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainmaster_operator.agent.process.saving import saving_seconds


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
