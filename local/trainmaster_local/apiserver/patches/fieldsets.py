"""Sets of fields as managedFields writes them, and the sets of an object or a change.

A set is a tree of `FieldsV1`: `{"f:spec": {"f:list": {'k:{"name":"p"}': {".": {}, "f:v": {}}}}}`. A node without
children is a member; a node with children is a member only if it contains ".". Sets are never changed in place. The
algorithms are those of sigs.k8s.io/structured-merge-diff (`fieldpath/set.go`, `typed/tofieldset.go`,
`typed/compare.go`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_local.apiserver.schema.structure import (
    ANY,
    Schema,
    field_schema,
    is_atomic_map,
    is_named_field,
    item_schema,
    key_defaults,
    list_keys,
    list_type,
)

Fields = dict[str, Any]
"""A set of fields, or a node of one."""

MEMBER = "."
_MISSING = object()


def union(left: Fields, right: Fields) -> Fields:
    """Returns all members of both. As in FieldsV1 an empty node below the root is a member."""
    if not right:
        return left
    if not left:
        return right
    result = dict(left)
    for key, node in right.items():
        other = result.get(key)
        result[key] = node if other is None else _union_nodes(other, node)
    return result


def _union_nodes(left: Fields, right: Fields) -> Fields:
    if left is right or (not right and (not left or MEMBER in left)):
        return left
    if not left or not right:
        full = left or right
        return full if MEMBER in full else {MEMBER: {}, **full}
    return union(left, right)


def intersection(left: Fields, right: Fields) -> Fields:
    """Returns the members of both."""
    result: Fields = {}
    for key, node in left.items():
        other = right.get(key)
        if other is None:
            continue
        if key == MEMBER:
            result[key] = {}
            continue
        both = intersection(node, other)
        if is_member(node) and is_member(other):
            result[key] = both if not both or MEMBER in both else {MEMBER: {}, **both}
        elif both:
            result[key] = both
    return result


def difference(left: Fields, right: Fields) -> Fields:
    """Returns the members of `left` that aren't members of `right`."""
    if not right or not left:
        return left
    result: Fields = {}
    for key, node in left.items():
        other = right.get(key)
        if other is None:
            result[key] = node
            continue
        if key == MEMBER:
            continue
        member = is_member(node) and not is_member(other)
        rest = difference(_children(node), _children(other))
        if member:
            result[key] = {MEMBER: {}, **rest} if rest else {}
        elif rest:
            result[key] = rest
    return result


def is_member(node: Fields) -> bool:
    return not node or MEMBER in node


def _children(node: Fields) -> Fields:
    return {key: child for key, child in node.items() if key != MEMBER} if MEMBER in node else node


def without(fields: Fields, *paths: tuple[str, ...]) -> Fields:
    """Returns the set without everything at and below the paths, each a tuple of `f:` keys."""
    for path in paths:
        fields = _without(fields, path)
    return fields


def _without(fields: Fields, path: tuple[str, ...]) -> Fields:
    node = fields.get(path[0])
    if node is None:
        return fields
    rest = {key: child for key, child in fields.items() if key != path[0]}
    if len(path) > 1 and node:
        below = _without(node, path[1:])
        if below:
            return {**rest, path[0]: below}
    elif len(path) > 1:
        return fields
    return rest


def paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    """Yields each member as conflicts name it: `.spec.list[name="p"].v`, in order."""
    for key in sorted(fields):
        if key == MEMBER:
            continue
        node = fields[key]
        path = prefix + element_text(key)
        if is_member(node):
            yield path
        yield from paths(_children(node), path)


def element_text(key: str) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        named = sorted(json.loads(text).items())
        return "[" + ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in named) + "]"
    if kind == "v":
        return f"[={text}]"
    return f"[{text}]"


def value_key(value: Any) -> str:
    return "v:" + json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def item_key(item: Any, keys: list[str], defaults: Mapping[str, Any]) -> str | None:
    """Returns the `k:` key of an item of a list of maps; None if it has no key."""
    if not isinstance(item, Mapping):
        return None
    named = {key: item.get(key, defaults.get(key)) for key in sorted(keys) if key in item or key in defaults}
    if not named:
        return None
    return "k:" + json.dumps(named, separators=(",", ":"), ensure_ascii=False)


def keyed_items(items: list[Any], schema: Schema) -> dict[str, Any] | None:
    """Returns the items of a set or keyed list by their keys in a FieldsV1.

    Returns None for an atomic list, or if an item has no key.
    """
    kind = list_type(schema)
    if kind == "set":
        return {value_key(item): item for item in items}
    if kind == "map":
        keys = list_keys(schema)
        defaults = key_defaults(schema, keys)
        keyed: dict[str, Any] = {}
        for item in items:
            key = item_key(item, keys, defaults)
            if key is None:
                return None
            keyed[key] = item
        return keyed
    return None


def fields_of(value: Any, schema: Schema) -> Fields:
    """Returns the fields that an applied configuration owns: its leaves, and its items and map keys themselves."""
    if isinstance(value, dict) and value and not is_atomic_map(schema):
        result: Fields = {}
        for name, child in value.items():
            node = fields_of(child, field_schema(schema, name) or ANY)
            if node and not is_named_field(schema, name):
                node = {MEMBER: {}, **node}
            result[f"f:{name}"] = node
        return result
    if isinstance(value, list) and value:
        keyed = keyed_items(value, schema)
        if keyed is not None:
            items = item_schema(schema)
            result = {}
            for key, item in keyed.items():
                node = fields_of(item, items)
                result[key] = {MEMBER: {}, **node} if node else {}
            return result
    return {}


def added(value: Any, schema: Schema) -> Fields:
    """Returns the fields of a new value: all its nodes, including inner ones."""
    if isinstance(value, dict) and value and not is_atomic_map(schema):
        result: Fields = {MEMBER: {}}
        for name, child in value.items():
            result[f"f:{name}"] = added(child, field_schema(schema, name) or ANY)
        return result
    if isinstance(value, list) and value:
        keyed = keyed_items(value, schema)
        if keyed is not None:
            items = item_schema(schema)
            result = {MEMBER: {}}
            for key, item in keyed.items():
                result[key] = added(item, items)
            return result
    return {}


class Comparison:
    """The difference of two objects: `changed` contains added and modified fields, `removed` the missing ones."""

    __slots__ = ("changed", "removed")

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any], schema: Schema) -> None:
        self.changed, self.removed = _compare_maps(old, new, schema)

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


def _compare_maps(old: Mapping[str, Any], new: Mapping[str, Any], schema: Schema) -> tuple[Fields, Fields]:
    changed: Fields = {}
    removed: Fields = {}
    for name, value in new.items():
        previous = old.get(name, _MISSING)
        if previous is value:
            continue
        _compare(f"f:{name}", previous, value, field_schema(schema, name) or ANY, changed, removed)
    for name, previous in old.items():
        if name not in new:
            removed[f"f:{name}"] = added(previous, field_schema(schema, name) or ANY)
    return changed, removed


def _compare(key: str, old: Any, new: Any, schema: Schema, changed: Fields, removed: Fields) -> None:
    if old is _MISSING:
        changed[key] = added(new, schema)
        return
    if old == new:
        return
    if isinstance(new, dict) and isinstance(old, dict) and not is_atomic_map(schema):
        inner, gone = _compare_maps(old, new, schema)
    elif isinstance(new, list) and (isinstance(old, list) or old is None) and list_type(schema) != "atomic":
        inner, gone = _compare_lists(old or [], new, schema)
    elif isinstance(new, dict) and old is None and not is_atomic_map(schema):
        inner, gone = _compare_maps({}, new, schema)
    else:
        changed[key] = {}
        return
    if inner:
        changed[key] = inner
    if gone:
        removed[key] = gone


def _compare_lists(old: list[Any], new: list[Any], schema: Schema) -> tuple[Fields, Fields]:
    before = keyed_items(old, schema)
    after = keyed_items(new, schema)
    if before is None or after is None:
        return ({MEMBER: {}}, {}) if old != new else ({}, {})
    items = item_schema(schema)
    changed: Fields = {}
    removed: Fields = {}
    for key, item in after.items():
        _compare(key, before.get(key, _MISSING), item, items, changed, removed)
    for key, item in before.items():
        if key not in after:
            removed[key] = added(item, items)
    return changed, removed
