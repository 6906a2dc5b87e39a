"""Reads a structural schema: the schema of a field, and how lists and maps merge.

A schema is OpenAPI v3 as JSON without `$ref`. The empty schema has no rule: everything is kept, lists are atomic and
maps merge, as for the untyped part of an object in kube-apiserver's `typed.DeducedParseableType`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.schema.official import DEFINITION

Schema = Mapping[str, Any]

ANY: Schema = {}

_STRING: Schema = {"type": "string"}
_OWNER: Schema = {
    "type": "object",
    DEFINITION: "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
    "x-kubernetes-map-type": "atomic",
    "properties": {
        "apiVersion": _STRING,
        "kind": _STRING,
        "name": _STRING,
        "uid": _STRING,
        "controller": {"type": "boolean"},
        "blockOwnerDeletion": {"type": "boolean"},
    },
}

OBJECT_META: Schema = {
    "type": "object",
    DEFINITION: "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
    "properties": {
        "name": _STRING,
        "generateName": _STRING,
        "namespace": _STRING,
        "selfLink": _STRING,
        "uid": _STRING,
        "resourceVersion": _STRING,
        "generation": {"type": "integer", "format": "int64"},
        "creationTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        "deletionTimestamp": {"type": "string", "format": "date-time"},
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
        "labels": {"type": "object", "additionalProperties": _STRING},
        "annotations": {"type": "object", "additionalProperties": _STRING},
        "ownerReferences": {
            "type": "array",
            "items": _OWNER,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-merge-key": "uid",
            "x-kubernetes-patch-strategy": "merge",
        },
        "finalizers": {
            "type": "array",
            "items": _STRING,
            "x-kubernetes-list-type": "set",
            "x-kubernetes-patch-strategy": "merge",
        },
        "managedFields": {
            "type": "array",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "x-kubernetes-list-type": "atomic",
        },
    },
}


def with_object_meta(schema: Schema) -> Schema:
    """Returns the schema of a whole object: its own, with Kubernetes' type of `apiVersion`, `kind` and `metadata`."""
    if not schema:
        return schema
    properties = {
        **schema.get("properties", {}),
        "apiVersion": _STRING,
        "kind": _STRING,
        "metadata": OBJECT_META,
    }
    return {**schema, "type": "object", "properties": properties}


def field_schema(schema: Schema, name: str) -> Schema | None:
    """Returns the schema of an object's field; `ANY` if unknown fields are kept, None for an unknown field."""
    properties = schema.get("properties")
    if properties is not None and name in properties:
        found: Schema = properties[name]
        return found
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        return additional
    if additional or keeps_unknown(schema):
        return ANY
    return None


def is_named_field(schema: Schema, name: str) -> bool:
    """Returns whether this is a field of a struct (True) or a key of a map (False)."""
    return name in schema.get("properties", {})


def item_schema(schema: Schema) -> Schema:
    items = schema.get("items")
    return items if isinstance(items, Mapping) else ANY


def keeps_unknown(schema: Schema) -> bool:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    typed = schema.get("type") or schema.get("x-kubernetes-int-or-string")
    return not typed and "properties" not in schema


def list_type(schema: Schema) -> str:
    """Returns `atomic`, `set` or `map`."""
    kind: str = schema.get("x-kubernetes-list-type", "atomic")
    return kind


def list_keys(schema: Schema) -> list[str]:
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    return keys


def is_atomic_map(schema: Schema) -> bool:
    return schema.get("x-kubernetes-map-type") == "atomic"


def key_defaults(schema: Schema, keys: list[str]) -> dict[str, Any]:
    """Returns the defaults of a list's keys (`protocol: TCP`), which identify an item that omits a key.

    In a built-in type each key has one: Go's zero.
    """
    items = item_schema(schema)
    properties = items.get("properties", {})
    zeros = {"string": "", "integer": 0} if DEFINITION in items else {}
    defaults = {key: properties[key].get("default", zeros.get(properties[key].get("type", ""))) for key in keys}
    return {key: default for key, default in defaults.items() if default is not None}
