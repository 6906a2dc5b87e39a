"""metadata.managedFields records which manager owns which field, through updates and server-side applies.

The rules are those of k8s.io/apimachinery `pkg/util/managedfields` and structured-merge-diff's `merge/update.go`. The
manager of an update takes over the fields that it changes, and the manager of an apply owns the fields that it names.
An apply that would change a field of another owner is a conflict. A field that an applier no longer names is removed,
unless it has another owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.patches.fieldsets import (
    Comparison,
    Fields,
    difference,
    fields_of,
    intersection,
    paths,
    union,
    without,
)
from trainmaster_local.apiserver.patches.merging import merge, prune
from trainmaster_local.apiserver.resources import Object
from trainmaster_local.apiserver.schema.structure import Schema

MAX_UPDATERS = 10
"""More update managers than this are folded into one, `ancient-changes`."""

# These never have an owner: identity, and fields that the server maintains.
_STRIPPED = (
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata", "f:name"),
    ("f:metadata", "f:namespace"),
    ("f:metadata", "f:creationTimestamp"),
    ("f:metadata", "f:selfLink"),
    ("f:metadata", "f:uid"),
    ("f:metadata", "f:generation"),
    ("f:metadata", "f:managedFields"),
    ("f:metadata", "f:resourceVersion"),
)


@dataclass(frozen=True)
class Manager:
    """A write's manager consists of a name, an operation (`Apply` or `Update`), a version and a subresource."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        version = "" if self.operation == "Apply" else self.api_version
        return self.name, self.operation, version, self.subresource


@dataclass(frozen=True)
class Entry:
    """An entry contains a manager's fields, and the time of its last write (RFC 3339, or empty)."""

    manager: Manager
    fields: Fields
    time: str


Entries = dict[tuple[str, str, str, str], Entry]


def read(obj: Mapping[str, Any]) -> Entries:
    """Returns the entries of an object. Raises 400 for invalid managedFields."""
    entries: Entries = {}
    for item in obj.get("metadata", {}).get("managedFields") or []:
        if not item:
            continue
        if item.get("operation") not in ("Apply", "Update"):
            raise ApiError(422, "Invalid", f"metadata.managedFields: invalid operation {item.get('operation')!r}")
        manager = Manager(
            item.get("manager", ""), item["operation"], item.get("apiVersion", ""), item.get("subresource", "")
        )
        entries[manager.identity] = Entry(manager, item.get("fieldsV1") or {}, item.get("time", ""))
    return entries


def write(obj: Object, entries: Entries) -> None:
    """Writes the entries into the object's metadata, in Kubernetes' order."""
    listed = sorted(
        (entry for entry in entries.values() if entry.fields),
        key=lambda e: (e.manager.operation, e.time, e.manager.name, e.manager.api_version, e.manager.subresource),
    )
    metadata = obj["metadata"]
    if not listed:
        metadata.pop("managedFields", None)
        return
    metadata["managedFields"] = [_encode(entry) for entry in listed]


def _encode(entry: Entry) -> dict[str, Any]:
    manager = entry.manager
    item: dict[str, Any] = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields,
    }
    if entry.time:
        item["time"] = entry.time
    if manager.subresource:
        item["subresource"] = manager.subresource
    return item


def strip(fields: Fields, reset: Iterable[tuple[str, ...]] = ()) -> Fields:
    """Returns the set without fields that no manager owns, and without `reset`, which this endpoint doesn't write."""
    return without(fields, *_STRIPPED, *reset)


def updated(
    live: Mapping[str, Any],
    new: Object,
    entries: Entries,
    manager: Manager,
    schema: Schema,
    now: str,
    reset: Iterable[tuple[str, ...]] = (),
) -> Entries:
    """Returns the entries after `manager` wrote `new` over `live` by an update (`live`: the type's zero value on
    create)."""
    comparison = Comparison(_unmanaged(live), _unmanaged(new), schema)
    changed = strip(comparison.changed, reset)
    removed = without(comparison.removed, *reset)
    if not changed and not removed:
        return entries
    gone = union(changed, removed)
    result: Entries = {}
    for identity, entry in entries.items():
        fields = difference(entry.fields, gone)
        if fields:
            result[identity] = entry if fields is entry.fields else replace(entry, fields=fields)
    if changed:
        previous = result.get(manager.identity)
        fields = union(previous.fields, changed) if previous else changed
        result[manager.identity] = Entry(manager, fields, now)
    return _bounded(result)


def _unmanaged(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the object without managedFields, which nobody owns."""
    metadata = obj.get("metadata", {})
    if "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _bounded(entries: Entries) -> Entries:
    updaters = [entry for entry in entries.values() if entry.manager.operation == "Update"]
    excess = len(updaters) - MAX_UPDATERS
    if excess <= 0:
        return entries
    oldest = sorted(updaters, key=lambda entry: entry.time)[: excess + 1]
    result = {identity: entry for identity, entry in entries.items() if entry not in oldest}
    for entry in oldest:
        manager = Manager("ancient-changes", "Update", entry.manager.api_version)
        previous = result.get(manager.identity)
        fields = union(previous.fields, entry.fields) if previous else entry.fields
        result[manager.identity] = Entry(manager, fields, entry.time)
    return result


def applied(
    live: Mapping[str, Any],
    config: Object,
    entries: Entries,
    manager: Manager,
    schema: Schema,
    now: str,
    *,
    force: bool,
    reset: Iterable[tuple[str, ...]] = (),
) -> tuple[Object, Entries]:
    """Returns the object and entries after `manager` applied `config`. Raises ApiError 409 that lists the conflicts."""
    named = fields_of(config, schema)
    owned = strip(named, reset)
    last = entries.get(manager.identity)
    mine = Entry(manager, owned, last.time if last else "")
    others = {identity: entry for identity, entry in entries.items() if identity != manager.identity}
    bare = _unmanaged(live)
    merged = merge(bare, config, schema)
    if last is not None:
        kept = named
        for entry in others.values():
            kept = union(kept, entry.fields)
        merged = prune(merged, difference(last.fields, kept), last.fields, kept, schema)
    comparison = Comparison(bare, merged, schema)
    changed = strip(comparison.changed, reset)
    conflicts = {
        identity: found for identity, entry in others.items() if (found := intersection(entry.fields, changed))
    }
    if conflicts and not force:
        raise _conflict({identity: others[identity] for identity in conflicts}, conflicts)
    result: Entries = {}
    for identity, entry in others.items():
        fields = difference(entry.fields, conflicts.get(identity, {}))
        fields = difference(fields, comparison.removed)
        if fields:
            result[identity] = entry if fields is entry.fields else replace(entry, fields=fields)
    if owned:
        result[manager.identity] = replace(mine, time=now) if comparison else mine
    return merged, result


def _conflict(entries: Entries, conflicts: Mapping[tuple[str, str, str, str], Fields]) -> ApiError:
    """Returns the 409 of `managedfields/internal/conflict.go`."""
    causes = []
    by_manager: dict[str, list[str]] = {}
    for identity in sorted(conflicts):
        entry = entries[identity]
        text = f'conflict with "{entry.manager.name}"'
        if entry.manager.subresource:
            text += f' with subresource "{entry.manager.subresource}"'
        if entry.manager.operation == "Update":
            text += f" using {entry.manager.api_version}"
            if entry.time:
                text += f" at {entry.time}"
        for path in paths(conflicts[identity]):
            causes.append({"reason": "FieldManagerConflict", "message": text, "field": path})
            by_manager.setdefault(text, []).append(path)
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = [
            line
            for text, fields in by_manager.items()
            for line in (f"{text.replace('conflict', 'conflicts', 1)}:", *(f"- {field}" for field in fields))
        ]
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApiError(409, "Conflict", message, details={"causes": causes})
