"""The scale subresource reads an autoscaling/v1 Scale from an object by its type's paths, and writes it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, bad_request, invalid
from trainmaster_local.apiserver.resources import Object, ResourceType


def at_path(obj: Mapping[str, Any], path: str) -> Any:
    """Returns the value at `.spec.replicas`, or None."""
    value: Any = obj
    for name in path.strip(".").split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def scale_of(type_: ResourceType, obj: Object) -> Object:
    """Returns the Scale of an object."""
    paths = type_.scale
    assert paths is not None
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: dict[str, Any] = {"replicas": at_path(obj, paths.status_replicas) or 0}
    if type_.scale_selector is not None:
        selector = type_.scale_selector(obj)
    else:
        selector = at_path(obj, paths.selector) if paths.selector else ""
    if selector:
        status["selector"] = selector
    replicas = at_path(obj, paths.spec_replicas)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def with_scale(type_: ResourceType, obj: Object, scale: Object) -> Object:
    """Returns the object with the Scale's replicas. Raises ApiError 422 for a negative number, 400 for another kind."""
    paths = type_.scale
    assert paths is not None
    if scale.get("kind", "Scale") != "Scale":
        raise bad_request(f"wrong object passed to Scale update: {scale.get('kind')}")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request(f"spec.replicas: Invalid value: {replicas!r}: must be an integer")
    if replicas < 0:
        error = FieldError.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("autoscaling", "Scale", obj["metadata"]["name"], [error])
    *parents, last = paths.spec_replicas.strip(".").split(".")
    result = dict(obj)
    result["metadata"] = dict(obj["metadata"])
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        result["metadata"]["resourceVersion"] = version
    place = result
    for name in parents:
        place[name] = dict(place.get(name) or {})
        place = place[name]
    place[last] = replicas
    return result
