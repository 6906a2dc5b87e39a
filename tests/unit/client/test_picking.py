"""Of JSON that comes in pieces only what a shape names becomes objects, whatever else stands in it."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from trainmaster.client.picking import Each, Picker, Shape

LARGE = 10**6
SHAPE: dict[str, Shape] = {
    "a": LARGE,
    "m": {"x": LARGE, "l": Each({"k": LARGE, "d": {"z": LARGE}}, 3), "t": LARGE},
    "t": LARGE,
}
TEXTS = ("", 'x"y\\', "é\n", "[{", '}],"a":', "\\")


def fed(picker: Picker, raw: bytes, size: Callable[[], int]) -> bytes:
    """Feeds pieces until the object is whole; returns what stands behind it."""
    at = 0
    while at < len(raw):
        step = size()
        rest = picker.feed(raw[at : at + step])
        at += step
        if rest is not None:
            return rest + raw[at:]
    pytest.fail("it never ended")


def some_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 4)
    if kind >= 6:
        return [some_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind >= 4:
        names = [
            chance.choice(["a", "m", "x", "l", "k", "d", "z", 'q"', "\\", "t"]) for _ in range(chance.randrange(5))
        ]
        return {name: some_value(chance, depth - 1) for name in names}
    return [chance.randrange(100), chance.choice(TEXTS) * chance.randrange(4), None, 1.5][kind]


def expected(value: dict[str, Any], shape: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, wanted in shape.items():
        given = value.get(name)
        if name not in value:
            continue
        if isinstance(wanted, int):
            found[name] = given
        elif isinstance(wanted, Each):
            if isinstance(given, list):
                items = [item for item in given if isinstance(item, dict)]
                found[name] = [expected(item, wanted.shape) for item in items[: wanted.most]]
        elif isinstance(given, dict):
            found[name] = expected(given, wanted)
    return found


def test_what_is_kept_is_the_same_wherever_the_pieces_end() -> None:
    chance = random.Random(1)
    for _ in range(1_500):
        value = {name: some_value(chance, 5) for name in chance.sample("amtql", chance.randrange(6))}
        separators = chance.choice([(",", ":"), (" , ", " : ")])
        raw = json.dumps(value, indent=chance.choice([None, 1]), ensure_ascii=False, separators=separators).encode()
        picker = Picker(SHAPE)
        assert fed(picker, raw + b" rest", lambda: chance.choice([1, 2, 3, 7, 50, LARGE])) == b" rest"
        assert picker.found == expected(value, SHAPE), raw
        assert picker.is_whole and picker.feed(b"more") == b"more"


N = 300_000
HOSTILE = {
    "empty lists": "[" + ",".join(["[]"] * N) + "]",
    "small objects": "[" + ",".join(['{"":0}'] * (N // 2)) + "]",
    "many names": "{" + ",".join(f'"{n:x}":{{}}' for n in range(N // 3)) + "}",
    "deep": "[" * N + "]" * N,
    "long": '"' + "x" * N + '"',
    "escapes": '"' + '\\"' * N + '"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_isnt_kept_costs_no_memory(name: str) -> None:
    raw = b'{"kind":"x","spec":{"training":%s,"queue":"gold"},"status":{"step":3}}' % HOSTILE[name].encode()
    peaks = []
    # Another thread of the tests may take memory meanwhile, but not each time.
    for _ in range(3):
        picker = Picker({"spec": {"queue": 100}, "status": {"step": 20}})
        tracemalloc.start()
        fed(picker, raw, lambda: 32_768)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert picker.found == {"spec": {"queue": "gold"}, "status": {"step": 3}}
    assert min(peaks) < 1_000_000, "json.loads takes 10 MB and more"


def test_what_is_larger_than_its_shape_lets_it_be_is_left_out() -> None:
    picker = Picker({"a": 5, "b": 5, "c": 20, "d": 20})
    fed(picker, b'{"a":12345 ,"b":"1234","c":"1234567890" , "d":[1,{"x":"y"}]}', lambda: 4)
    assert picker.found == {"a": 12345, "c": "1234567890", "d": [1, {"x": "y"}]}
    assert picker.has_too_large


def test_objects_of_a_list_can_be_taken_as_they_come_and_a_heavy_list_is_cut() -> None:
    raw = json.dumps({"items": [{"n": number, "x": "y" * 100} for number in range(100)], "kind": "L"}).encode()
    taking, seen = Picker({"kind": 10, "items": Each({"n": 10}, LARGE)}), []
    for at in range(0, len(raw), 50):
        taking.feed(raw[at : at + 50])
        seen += taking.take("items")
        assert taking.weight < 2_000
    assert seen == [{"n": number} for number in range(100)] and taking.found == {"items": [], "kind": "L"}
    cut = Picker({"kind": 10, "items": Each({"n": 10}, LARGE)}, most_weight=10_000)
    cut.feed(raw)
    assert cut.is_cut and 10 < len(cut.found["items"]) < 40 and cut.found["kind"] == "L"


@pytest.mark.parametrize("raw", [b"[1]", b"}", b"]"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="is no object"):
        Picker({}).feed(raw)


def test_text_that_is_no_json_never_ends() -> None:
    assert Picker({"a": 5}).feed(b"<html>404</html>") is None
