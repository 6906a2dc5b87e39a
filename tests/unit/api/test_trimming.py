"""`api.trimming` keeps the same parts of a document in pieces as of one that is decoded at once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import PLAIN
from trainmaster_operator.api import trimming
from trainmaster_operator.api.trimming import LEFT_OUT, Each, Shape, Trimmer, Whole, prune

KIB = 1024
SHAPE: Shape = {
    "kind": Whole(),
    "metadata": {"continue": Whole()},
    "items": Each(
        {
            "metadata": {
                "name": Whole(),
                "labels": {"job": Whole(), 'od"d\\': Whole()},
                "owners": Each(Whole(), most=2),
            },
            "spec": Whole(1 * KIB, marked=True),
            "status": Whole(1 * KIB, marked=True, beyond={"conditions": Whole()}),
        }
    ),
}
ITEM: dict[str, Any] = {
    "metadata": {
        "name": "a",
        "labels": {"x": "\\", "job": "bert", 'od"d\\': "]}", "y": ["{", {"job": "not this one"}]},
        "owners": [1, {"a": "b"}, 3],
    },
    "other": [[], {}, [[[[[["deep"]]]]]], -1.5e3, True, None],
    "spec": {"a": 1},
    "status": {"conditions": [{"type": "Ready"}], "more": "\U0001f600é"},
}
DOCUMENT: dict[str, Any] = {"kind": "List", "metadata": {"continue": "x", "rest": 12}, "items": [ITEM, ITEM]}


def without_limits(shape: Shape) -> Shape:
    """Returns the same shape without limits on sizes, because near a limit, text and value count different things."""
    if isinstance(shape, Whole):
        return Whole(2**30)
    return (
        Each(without_limits(shape.item))
        if isinstance(shape, Each)
        else {k: without_limits(v) for k, v in shape.items()}
    )


UNLIMITED = without_limits(SHAPE)


def trimmed(text: str | bytes, piece: int, shape: Shape = SHAPE) -> list[Any]:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    trimmer, found = Trimmer(shape), []
    for at in range(0, len(raw), piece):
        found += trimmer.feed(raw[at : at + piece])
    return found + trimmer.end()


@pytest.fixture(params=[trimming.AT_ONCE, 1], ids=["at once", "piece by piece"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test twice: small values are decoded at once, or everything is decoded in pieces."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trimming, "AT_ONCE", request.param)
        yield


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_what_a_shape_names_is_kept_and_nothing_else(piece: int, separators: tuple[str, str]) -> None:
    kept = {
        "metadata": {"name": "a", "labels": {"job": "bert", 'od"d\\': "]}"}, "owners": [1, {"a": "b"}]},
        "spec": {"a": 1},
        "status": ITEM["status"],
    }
    for ascii_only in (True, False):
        text = json.dumps(DOCUMENT, separators=separators, ensure_ascii=ascii_only)
        assert trimmed(text, piece) == [{"kind": "List", "metadata": {"continue": "x"}, "items": [kept, kept]}]


@pytest.mark.usefixtures("each_way")
@given(PLAIN, st.sampled_from(["items", "metadata", "kind", "item", "spec", "labels"]), st.integers(1, 200))
def test_pieces_make_no_difference(odd: Any, place: str, piece: int) -> None:
    item = (
        {**ITEM, "spec": odd}
        if place == "spec"
        else {**ITEM, "metadata": {"labels": odd}}
        if place == "labels"
        else odd
    )
    document = {**DOCUMENT, "items": [ITEM, item]} if place in ("item", "spec", "labels") else {**DOCUMENT, place: odd}
    # The values are compared as text, because no number equals NaN.
    assert json.dumps(trimmed(json.dumps(document), piece, UNLIMITED)) == json.dumps([prune(document, UNLIMITED)])


@pytest.mark.usefixtures("each_way")
@given(st.lists(PLAIN, max_size=4), st.integers(1, 60))
def test_documents_that_follow_each_other_come_one_by_one(documents: list[Any], piece: int) -> None:
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    found = [prune(document, UNLIMITED) for document in documents]
    assert json.dumps(trimmed(lines, piece, UNLIMITED)) == json.dumps(found)


@pytest.mark.usefixtures("each_way")
def test_a_document_is_there_as_soon_as_its_line_has_ended() -> None:
    trimmer = Trimmer(SHAPE)
    for document in (DOCUMENT, {}, 1, DOCUMENT):
        assert len(trimmer.feed(json.dumps(document).encode() + b"\n")) == 1


@pytest.mark.usefixtures("each_way")
@given(st.binary(max_size=200), st.integers(1, 30))
def test_whatever_bytes_come_each_line_is_a_document_or_an_error(raw: bytes, piece: int) -> None:
    after = json.dumps(DOCUMENT).encode() + b"\n"
    for found in (trimmed(raw, piece), trimmed(b"{" + raw, piece), trimmed(b'{"items":[{"metadata":' + raw, piece)):
        assert all(one is None or isinstance(one, dict | ValueError) for one in found)
    assert trimmed(b"{]\n" + after, piece)[1:] == [prune(DOCUMENT, SHAPE)]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "text",
    [
        "]",
        "}",
        '{"items":}',
        '{"items":[}',
        "{",
        '{"items": [',
        '{"kind": "a',
        '{"kind" 1}',
        '{"a": 1',
        '{"kind": nul}',
        "{]",
    ],
)
def test_what_is_no_json_is_an_error(text: str) -> None:
    for piece in (1, 100):
        (error,) = trimmed(text, piece)
        assert isinstance(error, ValueError)


@pytest.mark.usefixtures("each_way")
def test_what_is_too_large_is_left_out_and_named() -> None:
    item = {**ITEM, "spec": ["x" * 10_000], "status": {"more": "x" * 10_000, "conditions": [1]}}
    item["metadata"] = {**ITEM["metadata"], "name": "x" * 100_000}
    for piece in (50, 10_000):
        (found,) = trimmed(json.dumps({"items": [item]}), piece)
        (kept,) = found["items"]
        assert "spec" not in kept and kept["status"] == {"conditions": [1]} and "name" not in kept["metadata"]
        assert sorted(kept[LEFT_OUT]) == ["spec", "status"] and LEFT_OUT not in kept["metadata"]
    assert LEFT_OUT not in prune({"items": [{LEFT_OUT: ["spec"]}]}, SHAPE)["items"][0], "nobody else can write it"


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("piece", [1, 40, 10_000])
def test_items_are_taken_as_they_come_until_one_is_too_many(piece: int) -> None:
    taken: list[Any] = []

    def take(item: Any) -> bool:
        taken.append(item)
        return len(taken) < most

    shape = {"kind": Whole(), "items": Each({"n": Whole()}, take=take)}
    text = json.dumps({"items": [{"n": n, "x": ["y", {}]} for n in range(9)] + ["none"], "kind": "List"})
    for most in (100, 4, 1):
        taken.clear()
        assert trimmed(text, piece, shape) == [{"items": [], "kind": "List"}]
        assert taken == [{"n": n} for n in range(min(9, most))]


def test_an_item_is_taken_before_the_next_one_comes() -> None:
    taken: list[Any] = []
    trimmer = Trimmer({"items": Each({"n": Whole()}, take=lambda item: taken.append(item) is None)})
    for n in range(3):
        trimmer.feed(b'%s{"n": %d}' % (b"," if n else b'{"items": [', n))
        assert taken[n:] == [{"n": n}]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("depth", [90, 5_000, 200_000])
def test_depth_costs_nothing(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = json.dumps({"items": [{**ITEM, "other": "@", "spec": "@"}, ITEM]}).replace('"@"', deep)
    (found,) = trimmed(text, 4_096)
    assert found["items"][0]["metadata"]["name"] == "a" and found["items"][1]["spec"] == {"a": 1}


LARGE = {
    "labels": {"metadata": {"labels": {**{f"label-{n}": "" for n in range(80_000)}, "job": "bert"}}},
    "small objects": {"other": [{"name": f"V{n}", "value": "x"} for n in range(40_000)]},
    "small lists": {"other": [[]] * 500_000},
    "text": {"other": "x" * 1_500_000},
    "escapes": {"other": '"' * 700_000},
    "in each other": {"other": {"a": [[{}]] * 50_000}},
    "owners": {"metadata": {"owners": [{"uid": str(n)} for n in range(100_000)]}},
    "spec": {"spec": [[{"a": 0}]] * 150_000},
}


@pytest.mark.parametrize("name", LARGE)
def test_the_memory_of_a_large_object_is_that_of_what_is_kept(name: str) -> None:
    """Before, 1.5 MB of JSON took 15 to 45 MB, because all objects of a page were decoded together."""
    raw = json.dumps({"items": [LARGE[name]] * 2}, separators=(",", ":")).encode()
    trimmer = Trimmer(SHAPE)
    tracemalloc.start()
    try:
        for at in range(0, len(raw), 64 * KIB):
            trimmer.feed(raw[at : at + 64 * KIB])
        found = trimmer.end()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8e6, "the objects of two pieces"
    if name == "labels":
        assert found == []
