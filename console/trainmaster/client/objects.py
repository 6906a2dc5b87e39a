"""Reads values from raw objects: a missing value, or one of the wrong type, counts as empty. Formats texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster_operator.wire.values import mapping, mappings

Object = Mapping[str, Any]


def at(value: object, *path: str) -> Any:
    """Returns the value at a path of keys, or None."""
    for key in path:
        value = mapping(value).get(key)
    return value


def text(value: object, *path: str) -> str:
    """Returns the text at a path, or an empty text."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def items(value: object, *path: str) -> Sequence[Object]:
    """Returns the objects in the list at a path."""
    return mappings(at(value, *path))


def name_of(item: Object) -> str:
    """Returns metadata.name."""
    return text(item, "metadata", "name")


def condition(item: Object, kind: str) -> Object:
    """Returns an object's condition of the given type, or an empty mapping."""
    return next((one for one in items(item, "status", "conditions") if one.get("type") == kind), {})


def has_condition(item: Object, kind: str) -> bool:
    """Returns whether an object's condition of the given type is True."""
    return condition(item, kind).get("status") == "True"


def containers(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yields the names and statuses of a pod's containers, the init containers first."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for status in items(pod, "status", kind):
            yield text(status, "name"), status


def joined(names: Sequence[str], most: int = 3) -> str:
    """Joins names for a sentence. If there are more than `most`, only counts the rest."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def short(message: str, most: int = 300) -> str:
    """Returns a message as one line, without its final period."""
    return " ".join(message.split()).rstrip(".; ")[:most]
