"""Parses a method and a path into a `Route` (`pkg/endpoints/request/requestinfo.go`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "HEAD": "get", "DELETE": "delete"}
# These words can follow a namespace's name in a path, but aren't resources in the namespace.
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(frozen=True)
class Route:
    """A route is a request about a resource; `rest` is the path after the subresource (of a proxy)."""

    verb: str
    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""


def parse(method: str, path: str, query: Mapping[str, str]) -> Route | None:
    """Returns the route of a path below /api/VERSION or /apis/GROUP/VERSION; None for every other path."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace = rest[1]
        rest = rest[2:]
    resource, name, subresource = rest[0], *[*rest[1:3], "", ""][:2]
    verb = _VERBS.get(method, method.lower())
    if not name:
        if verb == "get":
            verb = "watch" if query.get("watch", "").lower() in ("1", "true") else "list"
        elif verb == "delete":
            verb = "deletecollection"
    return Route(verb, group, version, resource, namespace, name, subresource, "/".join(rest[3:]))
