"""Builds OpenAPI v3 documents from the types' schemas, one for each group and version.

They contain the parts that kubectl reads: the schema of each resource (`explain`, `apply`), and the endpoints that
support `dryRun` and `fieldValidation` (`--validate=strict`, `--dry-run=server`).
"""

from __future__ import annotations

import hashlib
from typing import Any

from trainmaster_local.apiserver.discovery.documents import groups_of
from trainmaster_local.apiserver.printing.tables import CREATED_DESCRIPTION, NAME_DESCRIPTION
from trainmaster_local.apiserver.resources import Registry, ResourceType
from trainmaster_local.apiserver.schema.official import DEFINITION, definition
from trainmaster_local.apiserver.schema.structure import OBJECT_META

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_OBJECT_META = f"{_META}.ObjectMeta"
_LIST_META = f"{_META}.ListMeta"
_API_VERSION = {
    "type": "string",
    "description": "APIVersion defines the versioned schema of this representation of an object. Servers should "
    "convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
}
_KIND = {
    "type": "string",
    "description": "Kind is a string value representing the REST resource this object represents. Servers may infer "
    "this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
}
_METADATA_DESCRIPTION = (
    "Standard object's metadata. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
_INLINE = ("Time", "MicroTime")
_SCALARS = {
    "Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "IntOrString": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
}
_META_DESCRIPTIONS = {
    "name": NAME_DESCRIPTION,
    "creationTimestamp": CREATED_DESCRIPTION,
    "labels": "Map of string keys and values that can be used to organize and categorize (scope and select) objects.",
    "annotations": "Annotations is an unstructured key value map stored with a resource.",
    "namespace": "Namespace defines the space within which each name must be unique.",
    "finalizers": "Must be empty before the object is deleted from the registry.",
    "ownerReferences": "List of objects depended by this object.",
    "managedFields": "ManagedFields maps workflow-id and version to the set of fields managed by that workflow.",
    "generateName": "GenerateName is an optional prefix, used by the server to generate a unique name.",
    "resourceVersion": "An opaque value that represents the internal version of this object.",
    "uid": "UID is the unique in time and space value for this object.",
    "generation": "A sequence number representing a specific generation of the desired state.",
    "deletionTimestamp": "DeletionTimestamp is the time at which this resource will be deleted.",
    "deletionGracePeriodSeconds": "Number of seconds allowed for this object to gracefully terminate.",
    "selfLink": "Deprecated: selfLink is a legacy read-only field that is no longer populated by the system.",
}


class OpenApi:
    """The documents of all groups are built on request and dropped when the types change."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._documents: dict[str, dict[str, Any]] = {}
        self._index: dict[str, Any] | None = None
        registry.on_change(self._forget)

    def _forget(self) -> None:
        self._documents.clear()
        self._index = None

    def index(self) -> dict[str, Any]:
        """Returns the document of /openapi/v3."""
        if self._index is None:
            paths = {}
            for group, versions in groups_of(self._registry).items():
                for version, types in versions.items():
                    path = f"apis/{group}/{version}" if group else f"api/{version}"
                    # Only the schemas of custom types can change while the server runs.
                    shown = repr([(t.kind, t.schema if t.custom else "") for t in types])
                    mark = hashlib.sha256(shown.encode()).hexdigest()[:32].upper()
                    paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={mark}"}
            self._index = {"paths": paths}
        return self._index

    def document(self, group: str, version: str) -> dict[str, Any] | None:
        """Returns the document of /openapi/v3/apis/GROUP/VERSION; None if that version isn't served."""
        key = f"{group}/{version}"
        if key not in self._documents:
            types = groups_of(self._registry).get(group, {}).get(version)
            if types is None:
                return None
            self._documents[key] = _document(types)
        return self._documents[key]


def _document(types: list[ResourceType]) -> dict[str, Any]:
    schemas: dict[str, Any] = {
        _OBJECT_META: _object_meta(),
        _LIST_META: {
            "type": "object",
            "description": "ListMeta describes metadata that synthetic resources must have.",
            "properties": {
                "continue": {"type": "string"},
                "remainingItemCount": {"type": "integer", "format": "int64"},
                "resourceVersion": {"type": "string"},
                "selfLink": {"type": "string"},
            },
        },
    }
    paths: dict[str, Any] = {}
    for type_ in types:
        name = schema_name(type_)
        schemas[name] = _linked(_schema(type_), schemas)
        schemas[f"{name}List"] = _list_schema(type_, name)
        paths.update(_paths(type_, name))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.2"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def schema_name(type_: ResourceType) -> str:
    """Returns `io.k8s.api.apps.v1.StatefulSet`, `dev.example.v1.Widget`."""
    if type_.custom:
        return ".".join([*reversed(type_.group.split(".")), type_.version, type_.kind])
    if type_.group.startswith("apiextensions"):
        return f"io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{type_.version}.{type_.kind}"
    group = type_.group.split(".")[0] if type_.group else "core"
    return f"io.k8s.api.{group}.{type_.version}.{type_.kind}"


def _gvk(type_: ResourceType) -> dict[str, str]:
    return {"group": type_.group, "version": type_.version, "kind": type_.kind}


def _reference(name: str, description: str = "") -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{name}"}
    return {"description": description, "allOf": [reference]} if description else reference


def _object_meta() -> dict[str, Any]:
    properties = {
        name: {**schema, "description": _META_DESCRIPTIONS[name]} for name, schema in OBJECT_META["properties"].items()
    }
    description = "ObjectMeta is metadata that all persisted resources must have."
    return {"type": "object", "description": description, "properties": properties}


def _schema(type_: ResourceType) -> dict[str, Any]:
    schema: dict[str, Any] = {
        key: value for key, value in type_.schema.items() if key not in (DEFINITION, "x-kubernetes-validations")
    }
    schema["type"] = "object"
    schema["properties"] = {
        **type_.schema.get("properties", {}),
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": _reference(_OBJECT_META, _METADATA_DESCRIPTION),
    }
    if not type_.schema:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    schema["x-kubernetes-group-version-kind"] = [_gvk(type_)]
    return schema


def _linked(schema: Any, components: dict[str, Any]) -> Any:
    """Returns the schema with references to definitions, as kube-apiserver publishes it.

    `kubectl explain` names types by these references. The definitions are added to `components`.
    """
    if isinstance(schema, list):
        return [_linked(item, components) for item in schema]
    if not isinstance(schema, dict):
        return schema
    name = schema.get(DEFINITION, "")
    if name.rsplit(".", 1)[-1] in _INLINE:
        return {key: value for key, value in schema.items() if key != DEFINITION}
    if not name:
        return {key: _linked(value, components) for key, value in schema.items()}
    if name not in components:
        components[name] = {}
        own = {key: value for key, value in definition(name).items() if key != DEFINITION}
        components[name] = _SCALARS.get(name.rsplit(".", 1)[-1]) or _linked(own, components)
    reference = _reference(name, schema.get("description", ""))
    return {**reference, "default": schema["default"]} if "default" in schema else reference


def _list_schema(type_: ResourceType, name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"{type_.kind_of_list} is a list of {type_.kind}",
        "required": ["items"],
        "properties": {
            "apiVersion": _API_VERSION,
            "kind": _KIND,
            "metadata": _reference(_LIST_META),
            "items": {"type": "array", "items": _reference(name)},
        },
        "x-kubernetes-group-version-kind": [{**_gvk(type_), "kind": type_.kind_of_list}],
    }


def _parameter(name: str, kind: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": True}}


_DRY_RUN = _parameter("dryRun", "string", "All: the request is answered as usual, and nothing is stored.")
_MANAGER = _parameter("fieldManager", "string", "The name of who makes these changes.")
_VALIDATION = _parameter(
    "fieldValidation", "string", "What to do with unknown and duplicate fields: Ignore, Warn, Strict."
)
_FORCE = _parameter("force", "boolean", "Take fields over from their managers (apply patches only).")


def _operation(type_: ResourceType, action: str, name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{action}{type_.version.capitalize()}{'Namespaced' if type_.namespaced else ''}{type_.kind}",
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": _reference(name)}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(type_),
    }
    if action in ("post", "put"):
        operation["requestBody"] = {"content": {"*/*": {"schema": _reference(name)}}}
    if action == "patch":
        kinds = ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"]
        if not type_.custom:
            kinds.append("application/strategic-merge-patch+json")
        operation["requestBody"] = {"content": {kind: {"schema": {"type": "object"}} for kind in kinds}}
    return operation


def _paths(type_: ResourceType, name: str) -> dict[str, Any]:
    base = f"/apis/{type_.group}/{type_.version}" if type_.group else f"/api/{type_.version}"
    place = f"{base}/namespaces/{{namespace}}/{type_.plural}" if type_.namespaced else f"{base}/{type_.plural}"
    writes = [_DRY_RUN, _MANAGER, _VALIDATION]
    collection: dict[str, Any] = {}
    one: dict[str, Any] = {}
    if "list" in type_.verbs:
        collection["get"] = _operation(type_, "list", f"{name}List", [])
    if "create" in type_.verbs:
        collection["post"] = _operation(type_, "post", name, writes)
    if "deletecollection" in type_.verbs:
        collection["delete"] = _operation(type_, "deletecollection", name, [_DRY_RUN])
    if "get" in type_.verbs:
        one["get"] = _operation(type_, "get", name, [])
    if "update" in type_.verbs:
        one["put"] = _operation(type_, "put", name, writes)
    if "patch" in type_.verbs:
        one["patch"] = _operation(type_, "patch", name, [*writes, _FORCE])
    if "delete" in type_.verbs:
        one["delete"] = _operation(type_, "delete", name, [_DRY_RUN])
    paths = {place: collection}
    if one:
        paths[f"{place}/{{name}}"] = one
    if type_.namespaced and "list" in type_.verbs:
        paths[f"{base}/{type_.plural}"] = {"get": _operation(type_, "list", f"{name}List", [])}
    return paths
