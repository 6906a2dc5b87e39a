"""`outgoing.headers`: the headers and the token that requests are sent with stand in files, and in no message."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.controller.outgoing.headers import UnusableFile, read_headers, read_token

OPTION = "--some-file"


def test_headers_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("Authorization: Bearer a b=\n\nX-Team:  ml \n")
    assert read_headers(str(path), OPTION) == {"Authorization": "Bearer a b=", "X-Team": "ml"}
    assert read_headers(None, OPTION) == {}


@pytest.mark.parametrize("text", ["a secret", "Authorization:", "Na me: secret", "X: secret\x00", "X: secr\xe9t"])
def test_headers_that_are_none_are_named_without_what_stands_there(tmp_path: Path, text: str) -> None:
    path = tmp_path / "headers"
    path.write_bytes(b"X-Fine: 1\n" + text.encode("latin-1"))
    with pytest.raises(UnusableFile, match=OPTION) as error:
        read_headers(str(path), OPTION)
    assert "secret" not in str(error.value) and str(path) in str(error.value)
    with pytest.raises(UnusableFile, match="can't be read"):
        read_headers(str(tmp_path / "missing"), OPTION)


def test_a_token_is_all_that_stands_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" s3cret\n")
    assert read_token(str(path), OPTION) == {"Authorization": "Bearer s3cret"}
    assert read_token(None, OPTION) == {}


@pytest.mark.parametrize("text", ["", "\n", "s3cret and more", "s3cret\nX-Evil: 1", "s3cr\xe9t", "s3cret\x00"])
def test_a_token_that_is_none_is_refused_without_what_stands_there(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnusableFile, match=OPTION) as error:
        read_token(str(path), OPTION)
    assert "s3cr" not in str(error.value) and str(path) in str(error.value)
