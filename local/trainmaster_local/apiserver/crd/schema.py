"""The schema of CustomResourceDefinitions themselves, without the schemas inside them (see `schema.structural`)."""

from __future__ import annotations

from typing import Any

_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING, "x-kubernetes-list-type": "atomic"}
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NAMES = {
    "type": "object",
    "description": "The names that this resource is served under.",
    "properties": {
        "plural": _STRING,
        "singular": _STRING,
        "shortNames": _STRINGS,
        "kind": _STRING,
        "listKind": _STRING,
        "categories": _STRINGS,
    },
}
_VERSION = {
    "type": "object",
    "properties": {
        "name": _STRING,
        "served": {"type": "boolean"},
        "storage": {"type": "boolean"},
        "deprecated": {"type": "boolean"},
        "deprecationWarning": _STRING,
        "schema": {"type": "object", "properties": {"openAPIV3Schema": _ANY}},
        "subresources": {
            "type": "object",
            "properties": {
                "status": _ANY,
                "scale": {
                    "type": "object",
                    "properties": {
                        "specReplicasPath": _STRING,
                        "statusReplicasPath": _STRING,
                        "labelSelectorPath": _STRING,
                    },
                },
            },
        },
        "additionalPrinterColumns": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": _STRING,
                    "type": _STRING,
                    "format": _STRING,
                    "description": _STRING,
                    "priority": {"type": "integer", "format": "int32"},
                    "jsonPath": _STRING,
                },
            },
        },
        "selectableFields": {"type": "array", "items": {"type": "object", "properties": {"jsonPath": _STRING}}},
    },
}
_CONDITION = {
    "type": "object",
    "properties": dict.fromkeys(("type", "status", "lastTransitionTime", "reason", "message"), _STRING)
    | {"observedGeneration": {"type": "integer", "format": "int64"}},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "CustomResourceDefinition represents a resource that should be exposed on the API server.",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "group": _STRING,
                "names": _NAMES,
                "scope": _STRING,
                "versions": {"type": "array", "items": _VERSION, "x-kubernetes-list-type": "atomic"},
                "conversion": {"type": "object", "properties": {"strategy": _STRING, "webhook": _ANY}},
                "preserveUnknownFields": {"type": "boolean"},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "acceptedNames": _NAMES,
                "storedVersions": _STRINGS,
                "conditions": {
                    "type": "array",
                    "items": _CONDITION,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"],
                    "x-kubernetes-patch-merge-key": "type",
                    "x-kubernetes-patch-strategy": "merge",
                },
                "observedGeneration": {"type": "integer", "format": "int64"},
            },
        },
    },
}
