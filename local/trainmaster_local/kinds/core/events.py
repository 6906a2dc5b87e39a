"""v1 Event: a record for people, deleted after an hour (kube-apiserver's `--event-ttl`; here: with the cluster)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.ages import age
from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.resources import Column, ResourceType
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.columns import NAME

Json = dict[str, Any]

_EVENT = "io.k8s.api.core.v1.Event"
_REFERENCE = "io.k8s.api.core.v1.ObjectReference"


def _default_event(event: Json) -> None:
    """Sets the fields that Go writes even if they are zero."""
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(name, None)
    for name in ("involvedObject", "source"):
        event.setdefault(name, {})
    for name in ("reportingComponent", "reportingInstance"):
        event.setdefault(name, "")


def _event_errors(event: Json) -> list[FieldError]:
    involved = event["involvedObject"].get("namespace", "")
    namespace = event["metadata"].get("namespace", "")
    if involved and involved != namespace:
        return [FieldError.invalid("involvedObject.namespace", involved, "does not match event.namespace")]
    if not involved and namespace not in ("", "default"):
        return [FieldError.invalid("involvedObject.namespace", involved, "does not match event.namespace")]
    return []


def _selectable(event: Json) -> Mapping[str, str]:
    involved = event["involvedObject"]
    names = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    source = event.get("source") or {}
    return {
        **{f"involvedObject.{name}": involved.get(name, "") for name in names},
        "reason": event.get("reason", ""),
        "reportingComponent": event.get("reportingComponent", ""),
        "source": source.get("component") or event.get("reportingComponent", ""),
        "type": event.get("type", ""),
    }


def _row(event: Json, now: float) -> list[Any]:
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    involved, source = event["involvedObject"], event.get("source") or {}
    kind = str(involved.get("kind", "")).lower()
    component = [source.get("component") or event.get("reportingComponent", ""), source.get("host", "")]
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{kind}/{involved.get('name', '')}" if kind else str(involved.get("name", "")),
        involved.get("fieldPath", ""),
        ", ".join(part for part in component if part),
        str(event.get("message", "")).strip(),
        age(first, now),
        series.get("count") or event.get("count") or 1,
        event["metadata"]["name"],
    ]


EVENT = ResourceType(
    group="",
    version="v1",
    kind="Event",
    plural="events",
    singular="event",
    namespaced=True,
    short_names=("ev",),
    schema=definition(_EVENT),
    zero={
        "metadata": {},
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    },
    default=_default_event,
    validate_create=_event_errors,
    validate_update=lambda new, old: _event_errors(new),
    columns=(
        Column("Last Seen", description=description(_EVENT, "lastTimestamp")),
        Column("Type", description=description(_EVENT, "type")),
        Column("Reason", description=description(_EVENT, "reason")),
        Column("Object", description=description(_EVENT, "involvedObject")),
        Column("Subobject", description=description(_REFERENCE, "fieldPath"), priority=1),
        Column("Source", description=description(_EVENT, "source"), priority=1),
        Column("Message", description=description(_EVENT, "message")),
        Column("First Seen", description=description(_EVENT, "firstTimestamp"), priority=1),
        Column("Count", description=description(_EVENT, "count"), priority=1),
        Column(NAME.name, NAME.type, NAME.format, NAME.description, 1),
    ),
    row=_row,
    selectable=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    selectable_values=_selectable,
    create_on_update=True,
)

EVENT_TYPES = (EVENT,)
