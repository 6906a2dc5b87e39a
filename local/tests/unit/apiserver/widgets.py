"""A small API serves tests: namespaces, ConfigMaps, and widgets made by a CustomResourceDefinition."""

from __future__ import annotations

import copy
from typing import Any

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.crd import definitions
from trainmaster_local.apiserver.resources import Registry, ResourceType
from trainmaster_local.apiserver.storage.store import Storage

WIDGETS = "widgets.example.dev"
_STRING = {"type": "string"}
_LABELS = {"type": "object", "additionalProperties": _STRING}

WIDGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "minimum": 0},
                "mode": {"type": "string", "default": "fast"},
                "tags": {"type": "array", "items": _STRING, "x-kubernetes-list-type": "set"},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": _STRING, "count": {"type": "integer"}},
                    },
                },
                "plain": {"type": "array", "items": {"type": "integer"}},
                "labels": _LABELS,
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": _STRING, "replicas": {"type": "integer"}}},
    },
}

CONFIG_MAPS = ResourceType(
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    "configmap",
    True,
    schema={"type": "object", "properties": {"data": _LABELS, "immutable": {"type": "boolean"}}},
)


def definition(schema: dict[str, Any] | None = None, **version: Any) -> dict[str, Any]:
    """Returns the CRD of widgets; `version` overrides fields of its only version."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "example.dev",
            "names": {"kind": "Widget", "plural": "widgets", "shortNames": ["wd"]},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
                    },
                    "schema": {"openAPIV3Schema": copy.deepcopy(schema or WIDGET_SCHEMA)},
                    **version,
                }
            ],
        },
    }


async def new_api(*, history: int = 10_000, schema: dict[str, Any] | None = None, **version: Any) -> Api:
    """Returns an API with widgets and a namespace `default`."""
    registry = Registry()
    registry.add(ResourceType("", "v1", "Namespace", "namespaces", "namespace", False))
    registry.add(CONFIG_MAPS)
    api = Api(registry, Storage(history=history))
    definitions.install(api)
    await api.create("namespaces", {"metadata": {"name": "default"}})
    await api.create(definitions.RESOURCE, definition(schema, **version))
    return api


def widget(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def managers(obj: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that each manager owns."""
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])}
