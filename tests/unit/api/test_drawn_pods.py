"""`pod_schema` accepts every drawn pod whose fields have the right types, and recognises a misspelled field."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.api_server import apply
from trainmaster_operator.api.pod_schema import check_fields
from trainmaster_operator.api.pod_schema.fields import ListOf, MappingOf, Scalar, Struct, Type, pod_types
from trainmaster_operator.api.problems import plain

NAMES = st.from_regex(re.compile(r"[a-z]([a-z0-9]{0,8}[a-z0-9])?"), fullmatch=True)


def values(kind: Type, depth: int = 3) -> st.SearchStrategy[Any]:
    """Draws values of a type, with some of its fields."""
    match kind:
        case Scalar(name="string"):
            return st.sampled_from(kind.values) if kind.values else NAMES
        case Scalar(name="boolean"):
            return st.booleans()
        case Scalar(name="int32" | "int64"):
            return st.integers(1, 255)
        case Scalar(name="quantity"):
            return st.sampled_from(["1", "500m", "1.5Gi", 2, 0.5, "1e3"])
        case Scalar(name="intOrString"):
            return st.integers(1, 9) | NAMES
        case ListOf():
            items = values(kind.item, depth)
            if isinstance(kind.item, Struct) and kind.keys:
                key = values(kind.item.fields[kind.keys[0]], depth)
                items = st.tuples(items, key).map(lambda pair: {**pair[0], kind.keys[0]: pair[1]})
            return st.lists(items, max_size=1)
        case MappingOf():
            return st.dictionaries(NAMES, values(kind.value, depth), max_size=2)
        case Struct():
            required = {name: values(kind.fields[name], depth - 1) for name in kind.required}
            others = {name: one for name, one in kind.fields.items() if depth > 0 and name not in required}
            chosen = st.lists(st.sampled_from(sorted(others)), max_size=3, unique=True) if others else st.just([])
            return chosen.flatmap(
                lambda names: st.fixed_dictionaries(
                    {**required, **{name: values(others[name], depth - 1) for name in names}}
                )
            )
    return st.none()


@given(values(pod_types()["PodSpec"]))
def test_every_pod_of_the_right_types_passes(pod: dict[str, Any]) -> None:
    assert list(check_fields(pod)) == []


@given(values(pod_types()["PodSpec"]))
def test_every_pod_of_the_right_types_passes_the_crds_schema(pod: dict[str, Any]) -> None:
    answer = apply({"workers": 1, "podTemplate": {"spec": pod}})
    assert answer.accepted, answer


FIELDS = sorted((name, field) for name, struct in pod_types().items() for field in struct.fields)


@given(st.sampled_from(FIELDS), st.sampled_from(["upper", "snake", "twice", "swapped"]))
def test_a_misspelled_field_is_recognised(place: tuple[str, str], how: str) -> None:
    """A check of that type alone recognises it, in any type."""
    name, field = place
    middle = len(field) // 2
    wrong = {
        "upper": field.upper(),
        "snake": re.sub(r"([A-Z])", r"_\1", field).lower(),
        "twice": field[:middle] + field[middle] + field[middle:],
        "swapped": field[: middle - 1] + field[middle] + field[middle - 1] + field[middle + 1 :],
    }[how]
    known = pod_types()[name].fields
    if wrong in known or (how in ("twice", "swapped") and len(field) < 8):
        return
    path = _path_to(name)
    found = list(check_fields(_at(path, {wrong: None})))
    assert [str(problem).split("; ")[1] for problem in found if "missing" not in str(problem)] == [
        f"did you mean {field}?"
    ] or any(plain(each) == plain(wrong) for each in known if each != field)


def _path_to(target: str) -> list[tuple[str, Type]]:
    """Returns the shortest path of fields from a PodSpec to a type."""
    waiting: list[tuple[Struct, list[tuple[str, Type]]]] = [(pod_types()["PodSpec"], [])]
    seen = set()
    while waiting:
        struct, path = waiting.pop(0)
        if struct.name == target:
            return path
        if struct.name in seen:
            continue
        seen.add(struct.name)
        for field, kind in struct.fields.items():
            inner = kind.item if isinstance(kind, ListOf) else kind.value if isinstance(kind, MappingOf) else kind
            if isinstance(inner, Struct):
                waiting.append((inner, [*path, (field, kind)]))
    raise AssertionError(target)


def _at(path: list[tuple[str, Type]], value: Any) -> Any:
    for field, kind in reversed(path):
        value = {field: [value] if isinstance(kind, ListOf) else {"x": value} if isinstance(kind, MappingOf) else value}
    return value
