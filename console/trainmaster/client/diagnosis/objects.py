"""These readers take values out of raw objects of the API; what isn't there, or is of another type, is empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainmaster_operator.wire.values import mapping, mappings

Object = Mapping[str, Any]


def at(value: object, *path: str) -> Any:
    """Returns what stands at a path of keys, or None."""
    for key in path:
        value = mapping(value).get(key)
    return value


def text(value: object, *path: str) -> str:
    """Returns the text at a path, or an empty one."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def items(value: object, *path: str) -> Sequence[Object]:
    """Returns the objects in the list at a path."""
    return mappings(at(value, *path))


def name_of(item: Object) -> str:
    """Returns metadata.name."""
    return text(item, "metadata", "name")


def time_of(value: object) -> datetime | None:
    """Returns a time of the API (RFC 3339), or None."""
    try:
        time = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def condition(item: Object, kind: str) -> Object:
    """Returns an object's condition of a type, or an empty one."""
    return next((one for one in items(item, "status", "conditions") if one.get("type") == kind), {})


def containers(pod: Object) -> Iterator[tuple[str, Object]]:
    """Yields the names and statuses of a pod's containers, the init containers first."""
    for field in ("initContainerStatuses", "containerStatuses"):
        for status in items(pod, "status", field):
            yield text(status, "name"), status


def plural(count: int, noun: str, several: str = "") -> str:
    """Returns a count with its noun: 1 node, 3 nodes."""
    return f"{count} {noun if count == 1 else several or noun + 's'}"


def joined(names: Sequence[str], most: int = 3) -> str:
    """Returns names as a person lists them; of many only the first."""
    shown = list(names[:most])
    if len(names) > most:
        return ", ".join(shown) + f" and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""
