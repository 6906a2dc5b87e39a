"""Server-side apply merges a configuration into an object, and prunes the fields that the configuration dropped.

Both follow a schema (structured-merge-diff `typed/merge.go`, `typed/remove.go`) and share unchanged parts with the
object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.patches.fieldsets import (
    MEMBER,
    Fields,
    item_key,
    keyed_items,
    value_key,
)
from trainmaster_local.apiserver.schema.structure import (
    ANY,
    Schema,
    field_schema,
    is_atomic_map,
    item_schema,
    key_defaults,
    list_keys,
    list_type,
)


def merge(live: Mapping[str, Any], config: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Returns `live` with the values of `config`; lists of sets and maps merge by their keys, the rest is replaced."""
    result = dict(live)
    for name, value in config.items():
        result[name] = _merge_value(live.get(name), value, field_schema(schema, name) or ANY)
    return result


def _merge_value(live: Any, value: Any, schema: Schema) -> Any:
    if isinstance(value, dict) and isinstance(live, dict) and not is_atomic_map(schema):
        return merge(live, value, schema)
    if isinstance(value, list) and isinstance(live, list) and list_type(schema) != "atomic":
        return _merge_list(live, value, schema)
    return value


def _merge_list(live: list[Any], config: list[Any], schema: Schema) -> list[Any]:
    """Returns items in the order of `config`; items that occur only in `live` keep their place among them."""
    theirs = keyed_items(live, schema)
    ours = keyed_items(config, schema)
    if theirs is None or ours is None:
        return config
    items = item_schema(schema)
    order = _interleaved(list(theirs), list(ours))
    return [_merge_value(theirs.get(key), ours[key], items) if key in ours else theirs[key] for key in order]


def _interleaved(live: list[str], config: list[str]) -> list[str]:
    """Merges two orders: the configuration's keys keep theirs, other keys stay before the next shared key."""
    wanted, known = set(config), set(live)
    shared = [key for key in config if key in known]
    result: list[str] = []
    at = position = following = 0
    while at < len(live) or position < len(config):
        next_shared = shared[following] if following < len(shared) else None
        if at < len(live):
            key = live[at]
            if key not in wanted:
                result.append(key)
                at += 1
                continue
            if key != next_shared:
                # This key is shared, and the configuration puts it elsewhere.
                at += 1
                continue
        key = config[position]
        result.append(key)
        position += 1
        if key == next_shared:
            following += 1
    return result


def prune(value: dict[str, Any], dropped: Fields, last: Fields, kept: Fields, schema: Schema) -> dict[str, Any]:
    """Returns `value` without the fields in `last` that no set in `kept` contains, directly or below."""
    if not dropped:
        return value
    pruned: dict[str, Any] = _prune(value, last, kept, schema)
    return pruned


def _prune(value: Any, last: Fields, kept: Fields, schema: Schema) -> Any:
    if isinstance(value, dict):
        result = {}
        for name, child in value.items():
            node = last.get(f"f:{name}")
            if node is None:
                result[name] = child
                continue
            held = kept.get(f"f:{name}")
            if held is None:
                continue
            result[name] = _prune(child, node, held, field_schema(schema, name) or ANY) if _inner(node) else child
        return result
    if isinstance(value, list) and list_type(schema) != "atomic":
        keys = list_keys(schema)
        defaults = key_defaults(schema, keys)
        items = item_schema(schema)
        listed = []
        for item in value:
            key = value_key(item) if list_type(schema) == "set" else item_key(item, keys, defaults)
            node = last.get(key) if key is not None else None
            if key is None or node is None:
                listed.append(item)
                continue
            held = kept.get(key)
            if held is None:
                continue
            listed.append(_prune(item, node, held, items) if _inner(node) else item)
        return listed
    return value


def _inner(node: Fields) -> bool:
    return any(key != MEMBER for key in node)
