"""Answers controllers' questions about pods: `pkg/controller/controller_utils.go` and `pkg/api/pod/util.go`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.ages import seconds_since_epoch

Object = Mapping[str, Any]


def condition(obj: Object, name: str) -> Object | None:
    """Returns the condition of that type, or None."""
    for entry in (obj.get("status") or {}).get("conditions") or []:
        if entry.get("type") == name:
            return entry  # type: ignore[no-any-return]
    return None


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def is_finished(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    """Returns whether a pod is running and its condition Ready is true."""
    ready = condition(pod, "Ready")
    return phase(pod) == "Running" and bool(ready) and ready is not None and ready.get("status") == "True"


def available_in(pod: Object, min_ready_seconds: int, now: float) -> float | None:
    """Returns the seconds until the pod counts as available; 0 if it already does, None while it isn't ready."""
    if not is_ready(pod):
        return None
    if not min_ready_seconds:
        return 0.0
    ready = condition(pod, "Ready")
    since = seconds_since_epoch(str(ready["lastTransitionTime"])) if ready and ready.get("lastTransitionTime") else now
    return max(0.0, since + min_ready_seconds - now)


def controller_of(obj: Object) -> Object | None:
    """Returns the owner reference with `controller: true`."""
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            return reference  # type: ignore[no-any-return]
    return None


def owner_reference(owner: Object, api_version: str, kind: str) -> dict[str, Any]:
    """Returns the owner reference for objects that a controller creates."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
