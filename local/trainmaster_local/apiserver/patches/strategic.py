"""Strategic merge patch of built-in types (k8s.io/apimachinery `pkg/util/strategicpatch/patch.go`).

Lists with `x-kubernetes-patch-strategy: merge` are merged; lists of objects are merged by
`x-kubernetes-patch-merge-key`. The patch may contain `$patch: delete | replace | merge`,
`$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`.
"""

from __future__ import annotations

import json
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import bad_request
from trainmaster_local.apiserver.schema.structure import ANY, Schema, field_schema, item_schema

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def strategic_merge_patch(target: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Returns the patched object. Raises ApiError 400 for an invalid directive."""
    merged = _merge_map(target, patch, schema)
    return merged if merged is not None else {}


def _merge_map(target: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any] | None:
    """Returns the merged map; None if the patch deletes it."""
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != _DIRECTIVE}
    if directive == "delete":
        return None
    if directive not in (None, "merge"):
        raise bad_request(f"invalid value of directive $patch: {directive!r}: use delete, merge or replace")
    result = dict(target)
    if _RETAIN in patch:
        retained = set(patch[_RETAIN])
        result = {name: value for name, value in result.items() if name in retained}
    orders = {name[len(_ORDER) :]: value for name, value in patch.items() if name.startswith(_ORDER)}
    for name, values in patch.items():
        if name.startswith(_DELETE_FROM):
            field = name[len(_DELETE_FROM) :]
            if field in result:
                result[field] = [item for item in result[field] if item not in values]
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
            continue
        merged = _merge_value(result.get(name), value, field_schema(schema, name) or ANY)
        if merged is None:
            result.pop(name, None)
        else:
            result[name] = merged
    for name, order in orders.items():
        if isinstance(result.get(name), list):
            child = field_schema(schema, name) or ANY
            result[name] = _ordered(result[name], order, child.get("x-kubernetes-patch-merge-key"))
    return result


def _merges(schema: Schema) -> bool:
    return "merge" in str(schema.get("x-kubernetes-patch-strategy", "")).split(",")


def _merge_value(target: Any, value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        strategies = str(schema.get("x-kubernetes-patch-strategy", "")).split(",")
        if not isinstance(target, dict) or "replace" in strategies:
            return _merge_map({}, value, schema)
        return _merge_map(target, value, schema)
    if isinstance(value, list):
        key = schema.get("x-kubernetes-patch-merge-key")
        if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" and len(item) == 1 for item in value):
            return [item for item in value if not (isinstance(item, dict) and _DIRECTIVE in item)]
        if not _merges(schema):
            return [_without_directives(item) for item in value]
        current = target if isinstance(target, list) else []
        if key is None:
            return current + [item for item in value if item not in current]
        return _merge_list(current, value, key, item_schema(schema))
    return value


def _merge_list(current: list[Any], patch: list[Any], key: str, items: Schema) -> list[Any]:
    result = list(current)
    for item in patch:
        if not isinstance(item, dict):
            raise bad_request(f"invalid patch: an item of a list that merges by {key} is no object: {item!r}")
        if key not in item:
            raise bad_request(f"map: map[{_go_map(item)}] does not contain declared merge key: {key}")
        places = [index for index, other in enumerate(result) if other.get(key) == item[key]]
        if item.get(_DIRECTIVE) == "delete":
            result = [other for index, other in enumerate(result) if index not in places]
        elif places:
            merged = _merge_map(result[places[0]], item, items)
            if merged is not None:
                result[places[0]] = merged
        else:
            merged = _merge_map({}, item, items)
            if merged is not None:
                result.append(merged)
    return result


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_directives(child) for name, child in value.items() if not name.startswith("$")}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value


def _go_map(item: dict[str, Any]) -> str:
    return " ".join(f"{name}:{value}" for name, value in sorted(item.items()))


def _identity(item: Any, key: str | None) -> str:
    return json.dumps(item.get(key) if key and isinstance(item, dict) else item, sort_keys=True)


def _ordered(items: list[Any], order: list[Any], key: str | None) -> list[Any]:
    """Returns items in the patch's order; items that it doesn't name stay behind their predecessor."""
    ranks = {_identity(entry, key): rank for rank, entry in enumerate(order)}
    keyed = []
    last = -1
    for place, item in enumerate(items):
        rank = ranks.get(_identity(item, key))
        if rank is None:
            keyed.append((last, 1, place, item))
        else:
            last = rank
            keyed.append((rank, 0, place, item))
    return [item for _, _, _, item in sorted(keyed, key=lambda entry: entry[:3])]
