"""Kubernetes Events are listed and watched as raw objects: they are about anything in a namespace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from trainmaster.client.job import items_of
from trainmaster.client.transport import AsyncTransport
from trainmaster.client.watching import changes
from trainmaster_operator.wire.values import mapping


async def list_events(transport: AsyncTransport, namespace: str | None) -> list[Mapping[str, Any]]:
    """Returns the Events of a namespace; None: of all."""
    return items_of(await transport.request("GET", _path(namespace)))


async def watch_events(
    transport: AsyncTransport, namespace: str | None
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yields the Events that there are as ADDED, then each that is added or changed, for ever."""
    path = _path(namespace)
    known: dict[str, str] = {}
    while True:
        answer = await transport.request("GET", path)
        listed = {str(item["metadata"].get("uid")): item for item in items_of(answer)}
        for uid, item in listed.items():
            if known.get(uid) != _version(item):
                yield ("MODIFIED" if uid in known else "ADDED"), item
        known = {uid: _version(item) for uid, item in listed.items()}
        async with aclosing(changes(transport, path, _version(answer))) as changed:
            async for kind, item in changed:
                known[str(mapping(item.get("metadata")).get("uid"))] = _version(item)
                yield kind, item


def _path(namespace: str | None) -> str:
    return "/api/v1/events" if namespace is None else f"/api/v1/namespaces/{namespace}/events"


def _version(found: Mapping[str, Any]) -> str:
    return str(mapping(found.get("metadata")).get("resourceVersion") or "")
