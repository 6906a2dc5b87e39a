"""`recording.sender` sends requests with the token from a file, and no message quotes the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster_operator.controller.recording.sender import UnusableFile, token_header


def test_a_token_is_all_that_stands_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" s3cret\n")
    assert token_header(str(path)) == {"Authorization": "Bearer s3cret"}
    assert token_header(None) == {}
    with pytest.raises(UnusableFile, match="can't be read"):
        token_header(str(tmp_path / "missing"))


@pytest.mark.parametrize("text", ["", "\n", "s3cret and more", "s3cret\nX-Evil: 1", "s3cr\xe9t", "s3cret\x00"])
def test_a_token_that_is_none_is_refused_without_what_stands_there(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnusableFile, match="--history-token-file") as error:
        token_header(str(path))
    assert "s3cr" not in str(error.value) and str(path) in str(error.value)
