"""Objects may be as deep as on a real API server: encoding/json reads 10,000 levels."""

from __future__ import annotations

import itertools
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.http.codec import decode


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


# The deepest is read a hundred levels at a time like those above, and takes seconds, so once is enough.
@pytest.mark.parametrize(
    ("depth", "opening"), [*itertools.product([99, 100, 101, 1_100], ["[", '{"a":']), (9_997, "[")]
)
def test_what_is_deep_comes_back_as_it_went_in(depth: int, opening: str) -> None:
    text = f'{{"spec":{{"free":{opening * depth}"]"{("]" if opening == "[" else "}") * depth},"size":1}}}}'
    value = decode(text.encode(), "application/json", "Widget").value
    assert value["spec"]["size"] == 1
    assert deep.dumps(value).decode() == text
    assert deep.dumps(deep.copied(value)).decode() == text
    assert deep.copied(value) == value


def test_deeper_than_go_reads_is_refused_as_go_does() -> None:
    with pytest.raises(ApiError, match="exceeded max depth"):
        decode(f'{{"a":{lists(10_000)}}}'.encode(), "application/json", "Widget")


@pytest.mark.parametrize(
    "text", [lists(5_000) + "]", "[" * 5_000, lists(150)[:-20] + "x" + "]" * 20, "[" * 150 + "," + "]" * 150]
)
def test_what_is_deep_and_no_json_is_refused(text: str) -> None:
    with pytest.raises(ApiError):
        decode(text.encode(), "application/json", "Widget")


@given(
    st.recursive(
        st.none() | st.text() | st.integers(0, 9), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_is_not_deep_is_decoded_as_ever(value: object) -> None:
    text = json.dumps([[value, "\x00deep 0"]] * 30).encode()
    assert deep.loads(text) == (orjson.loads(text), text)
