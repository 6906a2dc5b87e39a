"""`api.encoding` writes any text as JSON in UTF-8, which YAML reads as the same value."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.json_codec import encode

CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from("\x7f\x85\u2028\ufeff\uffff\U0001f600")
)


@given(st.text(CHARACTERS))
def test_what_is_encoded_is_read_back_from_json_and_from_yaml(text: str) -> None:
    body = encode({"args": [text]})
    assert json.loads(body) == {"args": [text]}
    assert not re.search(rb"\\u[dD][89a-fA-F]", body)
    assert yaml.safe_load(body.decode()) == {"args": [text]}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("\U0001f600", "\U0001f600"),
        # PyYAML makes this pair of surrogates of "\ud83d\ude00".
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00\ud83db", "\ufffd\ufffdb"),
    ],
)
def test_surrogates_are_the_characters_that_they_mean(text: str, read: str) -> None:
    assert json.loads(encode({"value": text}).decode("utf-8", "strict")) == {"value": read}


def test_what_json_doesnt_have_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"value": float("nan")})
