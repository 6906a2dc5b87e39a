"""Draws JSON that an attacker could send: values of any shape, or a good object with fields replaced."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

HUGE = 10**400


def nested(depth: int, *, of: type[list[Any]] | type[dict[str, Any]] = list) -> Any:
    """Returns nested lists or objects."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if of is list else {"a": value}
    return value


ODD_TEXTS = st.sampled_from(["\ud800", "9" * 5_000, "٣", "²", "-1", "1e999", "\x1b]52;c;x\x07", "0001-01-01T00:00:00Z"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, -HUGE, 2**31, 2**53, 2**63, -1])
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | ODD_TEXTS
)
JSON = st.recursive(
    SCALARS | st.builds(nested, st.sampled_from([70, 1_100, 5_000]), of=st.sampled_from([list, dict])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)

# Values of any shape, as long as Python itself can write them.
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


@st.composite
def damaged(draw: st.DrawFn, good: Any) -> Any:
    """Draws a good object in which one to three fields (or the whole of it) are replaced."""
    value = copy.deepcopy(good)
    for path in draw(st.lists(st.sampled_from(_paths(good)), min_size=1, max_size=3)):
        if not path:
            return draw(JSON)
        place = value
        for key in path[:-1]:
            place = place[key] if isinstance(place, dict | list) and key in _keys(place) else None
        if isinstance(place, dict | list) and path[-1] in _keys(place):
            place[path[-1]] = draw(JSON)
    return value


def _keys(value: dict[Any, Any] | list[Any]) -> Any:
    return value.keys() if isinstance(value, dict) else range(len(value))
