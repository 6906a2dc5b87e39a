"""The status is written by the smallest JSON merge patch (RFC 7386) from the server's to the one that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.wire.values import mappings

# What changes with every report of progress, or with every pod that comes and goes: a patch of nothing else needs no
# haste.
PROGRESS_FIELDS = frozenset({"progress", "timeSpent", "workers", "replicas"})


def to_wire(status: JobStatus) -> dict[str, Any]:
    """Returns a status as the API has it: camelCase, without what isn't set."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what to send so that `old` becomes `new`. Lists are replaced whole, as the standard has it."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


def with_conditions(raw: Mapping[str, Any], status: JobStatus) -> dict[str, Any]:
    """Returns the patch that brings these conditions into a status, and leaves all else as it stands."""
    wanted = to_wire(JobStatus(conditions=status.conditions)).get("conditions", [])
    types = {item["type"] for item in wanted}
    old = mappings(raw.get("conditions"))
    new = [*(item for item in old if item.get("type") not in types), *wanted]
    return {"conditions": new} if new != list(old) else {}


def is_only_progress(patch: Mapping[str, Any]) -> bool:
    """Returns whether a patch has progress and nothing else."""
    return bool(patch) and patch.keys() <= PROGRESS_FIELDS
