"""Builds tables (`kubectl get`) and metadata-only answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster_local.ages import human_duration, seconds_since_epoch
from trainmaster_local.apiserver.printing.jsonpath import parse
from trainmaster_local.apiserver.resources import Column, Object, ResourceType

NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically. Name is primarily intended for creation "
    "idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
CREATED_DESCRIPTION = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed "
    "to be set in happens-before order across separate operations. Clients may not set this value. It is represented "
    "in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
NAME = Column("Name", "string", "name", NAME_DESCRIPTION)


def columns_of(type_: ResourceType) -> tuple[Column, ...]:
    if type_.columns:
        return type_.columns
    return NAME, Column("Created At", "date", "", CREATED_DESCRIPTION)


def row_of(type_: ResourceType, obj: Object, now: float) -> list[Any]:
    if type_.row is not None:
        return type_.row(obj, now)
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp", "<unknown>")]


def partial(obj: Object) -> Object:
    """Returns the object's metadata alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(
    type_: ResourceType,
    objects: Iterable[Object],
    metadata: Mapping[str, Any],
    now: float,
    include: str = "Metadata",
    *,
    header: bool = True,
) -> Object:
    """Returns a Table. `include` (None, Metadata or Object) selects the part of each object in its row."""
    answer: Object = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": dict(metadata)}
    answer["columnDefinitions"] = (
        [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns_of(type_)
        ]
        if header
        else []
    )
    rows = []
    for obj in objects:
        row: Object = {"cells": row_of(type_, obj, now)}
        if include != "None":
            row["object"] = obj if include == "Object" else partial(obj)
        rows.append(row)
    answer["rows"] = rows
    return answer


def custom_columns(
    definitions: list[dict[str, Any]],
) -> tuple[tuple[Column, ...], Callable[[Object, float], list[Any]]]:
    """Returns the columns of a CRD's additionalPrinterColumns, and the function that fills them."""
    if not definitions:
        definitions = [
            {
                "name": "Age",
                "type": "date",
                "jsonPath": ".metadata.creationTimestamp",
                "description": CREATED_DESCRIPTION,
            }
        ]
    columns = [NAME]
    readers = []
    for definition in definitions:
        path = definition["jsonPath"]
        description = definition.get("description") or f"Custom resource definition column (in JSONPath format): {path}"
        columns.append(
            Column(
                definition["name"],
                definition["type"],
                definition.get("format", ""),
                description,
                definition.get("priority", 0),
            )
        )
        readers.append((definition["type"], parse(path)))

    def row(obj: Object, now: float) -> list[Any]:
        cells = [obj["metadata"]["name"]]
        for kind, find in readers:
            values = find(obj)
            cells.append(_cell(kind, values[0], now) if values else None)
        return cells

    return tuple(columns), row


def _cell(kind: str, value: Any, now: float) -> Any:
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if kind == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "number":
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "date":
        try:
            return human_duration(now - seconds_since_epoch(value))
        except (TypeError, ValueError):
            return "<invalid>"
    return None
