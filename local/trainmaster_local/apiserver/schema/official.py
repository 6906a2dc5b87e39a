"""Provides the official schemas of Kubernetes 1.36's types, as structural OpenAPI v3 for the API server.

They come from the library `kubernetes_validate`, which contains the OpenAPI definitions of each Kubernetes release with
their descriptions and `x-kubernetes-*` extensions (list keys for server-side apply, merge keys for strategic merge
patch). Here their `$ref`s are resolved. Each definition is resolved once and shared by all references, so a schema is a
graph of shared dicts, which must never be changed. A resolved definition keeps its name under `DEFINITION`; the decoder
uses it to name Go's types in errors, and the published OpenAPI to restore the `$ref`s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Schema = Mapping[str, Any]

RELEASE = "v1.36.0"
"""The Kubernetes release whose answers the local cluster gives."""

DEFINITION = "x-definition"
"""The extension that names the definition a schema was made from, such as `io.k8s.api.core.v1.Container`."""

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_FREE_FORM = (
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
)

_DEFAULTS: Mapping[tuple[str, str], Any] = {
    # The library's copy has lost the defaults. Without those of a list's keys, server-side apply can't match items.
    ("io.k8s.api.core.v1.ContainerPort", "protocol"): "TCP",
    ("io.k8s.api.core.v1.ServicePort", "protocol"): "TCP",
}


@cache
def _definitions() -> Mapping[str, dict[str, Any]]:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"{RELEASE}-local" / "_definitions.json"
    definitions: Mapping[str, dict[str, Any]] = json.loads(path.read_text())["$defs"]
    return definitions


@cache
def definition(name: str) -> dict[str, Any]:
    """Returns the structural schema of a definition (`io.k8s.api.core.v1.PodSpec`).

    Raises KeyError if the release has none.
    """
    if name == _QUANTITY:
        # On the wire this can be a string or any number (`cpu: 0.5`), but a reader always gets a string.
        return {"x-kubernetes-preserve-unknown-fields": True, DEFINITION: name}
    if name == _INT_OR_STRING:
        return {"x-kubernetes-int-or-string": True, DEFINITION: name}
    if name in _FREE_FORM:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, DEFINITION: name}
    schema = _structural(_definitions()[name])
    schema[DEFINITION] = name
    for field, value in schema.get("properties", {}).items():
        if (name, field) in _DEFAULTS:
            schema["properties"][field] = {**value, "default": _DEFAULTS[name, field]}
    return schema


def is_untyped_scalar(schema: Schema) -> bool:
    """Returns whether this is a quantity, or a number or a string."""
    return schema.get(DEFINITION) in (_QUANTITY, _INT_OR_STRING)


def is_quantity(schema: Schema) -> bool:
    return schema.get(DEFINITION) == _QUANTITY


@cache
def _kinds() -> Mapping[tuple[str, str], str]:
    found = {}
    for name, schema in _definitions().items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if name.endswith(f".{kind['kind']}"):
                version = f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]
                found[version, kind["kind"]] = name
    return found


def definition_of_kind(api_version: str, kind: str) -> str:
    """Returns the name of a kind's definition (`apps/v1`, `StatefulSet`); empty if the release has none."""
    return _kinds().get((api_version, kind), "")


def description(name: str, field: str) -> str:
    """Returns the release's description of a definition's field; the columns of tables show it."""
    text: str = _definitions()[name]["properties"][field].get("description", "")
    return text


def _structural(source: Schema) -> dict[str, Any]:
    if "$ref" in source:
        resolved = definition(source["$ref"].rsplit("/", 1)[1])
        own = {key: value for key, value in source.items() if key not in ("$ref",)}
        return {**resolved, **own} if own else resolved
    schema: dict[str, Any] = {}
    for key, value in source.items():
        if key == "type" and isinstance(value, list):
            # In `[T, "null"]` null means "not given", which holds for every field of a built-in type.
            schema["type"] = next(name for name in value if name != "null")
        elif key == "properties":
            schema["properties"] = {name: _structural(field) for name, field in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            schema[key] = _structural(value)
        elif key not in ("enum", "oneOf", "$schema", "$id"):
            schema[key] = value
    if not schema.keys() - {"description"}:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    return schema
