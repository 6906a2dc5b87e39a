"""Every field of a pod with its type, read once from `types.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Scalar:
    """Scalar is a value without parts: string, boolean, int32, int64, number, quantity, intOrString or any."""

    name: str
    # The values that it may have, where they are few.
    values: tuple[str, ...] = ()
    # A later release may have more values.
    is_open: bool = False


@dataclass(frozen=True)
class ListOf:
    """ListOf is a list. Its items differ in `keys`, where it has any."""

    item: Type
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class MappingOf:
    """MappingOf is a mapping of values of one type by names that are the user's own."""

    value: Type


@dataclass(frozen=True, eq=False)
class Struct:
    """Struct is a mapping with known fields."""

    name: str
    required: tuple[str, ...] = ()
    fields: dict[str, Type] = field(default_factory=dict)


Type = Scalar | ListOf | MappingOf | Struct
SCALARS = frozenset({"string", "boolean", "int32", "int64", "number", "quantity", "intOrString", "any"})


@cache
def pod_types() -> Mapping[str, Struct]:
    """Returns all types by name; `PodSpec` is the root."""
    table: dict[str, Any] = json.loads((files(__package__) / "types.json").read_text())["types"]
    structs = {name: Struct(name, tuple(one.get("required", ()))) for name, one in table.items()}
    for name, one in table.items():
        values = one.get("values", {})
        for each, written in one["fields"].items():
            structs[name].fields[each] = _type(written, structs, tuple(values.get(each, ())))
    return structs


def pod_spec() -> Struct:
    """Returns the type of podTemplate.spec."""
    return pod_types()["PodSpec"]


def _type(written: str, structs: Mapping[str, Struct], values: tuple[str, ...]) -> Type:
    if written[0] == "[":
        item, *keys = written[1:-1].split(" ")
        return ListOf(_type(item, structs, values), tuple(keys))
    if written[0] == "{":
        return MappingOf(_type(written[1:-1], structs, ()))
    if written in SCALARS:
        return Scalar(written, tuple(value for value in values if value != "..."), "..." in values)
    return structs[written]
