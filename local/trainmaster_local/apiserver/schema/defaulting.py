"""Applies the defaults of a structural schema (apiextensions-apiserver `pkg/apiserver/schema/defaulting`)."""

from __future__ import annotations

import copy
from typing import Any

from trainmaster_local.apiserver.schema.structure import Schema


def has_defaults(schema: Any) -> bool:
    """Returns whether the schema contains any default; without a default, defaulting can be skipped."""
    if isinstance(schema, dict):
        if "default" in schema and ("type" in schema or "x-kubernetes-int-or-string" in schema):
            return True
        return any(has_defaults(child) for child in schema.values())
    if isinstance(schema, list):
        return any(has_defaults(child) for child in schema)
    return False


def set_defaults(value: Any, schema: Schema) -> None:
    """Fills in missing values, in place. A forbidden null counts as missing if there is a default."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, child in properties.items():
            if "default" not in child:
                continue
            if name not in value or (value[name] is None and not child.get("nullable")):
                value[name] = copy.deepcopy(child["default"])
        additional = schema.get("additionalProperties")
        for name, item in value.items():
            child = properties.get(name)
            if child is None and isinstance(additional, dict):
                child = additional
                if item is None and "default" in child and not child.get("nullable"):
                    value[name] = item = copy.deepcopy(child["default"])
            if child is not None and isinstance(item, (dict, list)):
                set_defaults(item, child)
    elif isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return
        for index, item in enumerate(value):
            if item is None and "default" in items and not items.get("nullable"):
                value[index] = copy.deepcopy(items["default"])
            elif isinstance(item, (dict, list)):
                set_defaults(item, items)


def prune_nulls(value: Any, schema: Schema) -> None:
    """Drops nulls of non-nullable fields without a default, in place (PruneNonNullableNullsWithoutDefaults)."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties")
        for name in list(value):
            child = properties.get(name, additional)
            if not isinstance(child, dict):
                continue
            item = value[name]
            if item is None:
                if not child.get("nullable") and "default" not in child:
                    del value[name]
            elif isinstance(item, (dict, list)):
                prune_nulls(item, child)
    elif isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for item in value:
                if isinstance(item, (dict, list)):
                    prune_nulls(item, items)
