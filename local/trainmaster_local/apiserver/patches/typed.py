"""Checks an applied configuration against its type's schema, in the words of structured-merge-diff.

An apply that doesn't fit its schema is answered with 500, even for custom resources (`typed/validate.go` and
`typed/helpers.go`; the schema as kube-openapi's `schemaconv/openapi.go` derives it).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainmaster_local.apiserver.apimachinery import go_values
from trainmaster_local.apiserver.patches.fieldsets import element_text, item_key, value_key
from trainmaster_local.apiserver.schema.official import is_untyped_scalar
from trainmaster_local.apiserver.schema.structure import ANY, Schema, item_schema, key_defaults, list_keys, list_type

Problem = tuple[str, str]
"""The path of a wrong value, and the message about it."""

_NONE: list[Problem] = []


def problems(config: Any, schema: Schema) -> str:
    """Returns the problems as kube-apiserver lists them; empty for a valid configuration."""
    found = [f"{path}: {text}" if path else text for path, text in _value(config, schema, False)]
    return found[0] if len(found) == 1 else "\n  ".join(["errors:", *found]) if found else ""


def _value(value: Any, schema: Schema, keeps: bool) -> list[Problem]:
    """Returns a value's problems. `keeps` is true below a field that keeps unknown fields."""
    if value is None:
        return _NONE
    keeps = keeps or bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    wanted = schema.get("type", "scalar" if is_untyped_scalar(schema) else "")
    if wanted == "object":
        return _map(value, schema, keeps) if isinstance(value, dict) else _wrong("map", value)
    if wanted == "array":
        return _list(value, schema, keeps) if isinstance(value, list) else _wrong("list", value)
    if wanted == "":
        if isinstance(value, dict):
            return _map(value, schema, keeps)
        return _list(value, schema, keeps) if isinstance(value, list) else _NONE
    return _scalar(value, wanted, schema.get("format", ""))


def _wrong(wanted: str, value: Any) -> list[Problem]:
    return [("", f"expected {wanted}, got &{{{go_values.plain(value)}}}")]


def _scalar(value: Any, wanted: str, form: str) -> list[Problem]:
    if wanted in ("integer", "number"):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _NONE
        return [("", f"expected numeric (int or float), got {go_values.type_of(value)}")]
    if wanted == "boolean":
        return _NONE if isinstance(value, bool) else _wrong("boolean", value)
    if wanted == "string" and form in ("", "byte"):
        if isinstance(value, str):
            return _NONE
        return [("", f"expected string, got &value.valueUnstructured{{Value:{go_values.syntax(value)}}}")]
    return _wrong("any scalar", value) if isinstance(value, (dict, list)) else _NONE


def _map(value: dict[str, Any], schema: Schema, keeps: bool) -> list[Problem]:
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    if extra is None:
        extra = keeps or not properties
    found = _NONE
    for name, child in value.items():
        field = properties.get(name, extra)
        if field is False:
            # The walk of a map ends here.
            return [*found, (f".{name}", "field not declared in schema")]
        found = _below(found, f".{name}", _value(child, ANY if field is True else field, keeps))
    return found


def _list(value: list[Any], schema: Schema, keeps: bool) -> list[Problem]:
    items = item_schema(schema)
    kind = list_type(schema)
    keys = list_keys(schema)
    defaults = key_defaults(schema, keys)
    found = _NONE
    seen: set[str] = set()
    for index, item in enumerate(value):
        element = f"[{index}]"
        if kind != "atomic":
            problem = _keyed_problem(item, keys) if kind == "map" else _member_problem(item)
            key = item_key(item, keys, defaults) if kind == "map" else value_key(item)
            if not problem and key is None:
                listed = json.dumps(keys).replace(",", "")
                problem = f"associative list with keys has an element that omits all key fields {listed} "
                problem += "(and doesn't have default values for any key fields)"
            if problem or key is None:
                return [*found, ("", f"element {index}: {problem}")]
            element = element_text(key)
            if key in seen:
                found = [*found, ("", f"duplicate entries for key {element}")]
            seen.add(key)
        found = _below(found, element, _value(item, items, keeps))
    return found


def _keyed_problem(item: Any, keys: Sequence[str]) -> str:
    if item is None:
        return "associative list with keys may not have a null element"
    return "" if isinstance(item, dict) else "associative list with keys may not have non-map elements"


def _member_problem(item: Any) -> str:
    if item is None:
        return "associative list without keys has an element that's an explicit null"
    if isinstance(item, dict):
        return "associative list without keys has an element that's a map type"
    return "not supported: associative list with lists as elements" if isinstance(item, list) else ""


def _below(found: list[Problem], element: str, inner: list[Problem]) -> list[Problem]:
    return [*found, *((element + path, text) for path, text in inner)] if inner else found
