"""Fakes an API server in memory behind the `Cluster` protocol, with scripted faults; `fake_http` serves it over HTTP.

It has only the features that the operator relies on: uids, resourceVersions, preconditions, owner references, merge
patches of objects and status, and list and watch with label selectors.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmaster_operator.api.trimming import prune
from trainmaster_operator.controller.apiserver.cluster import PODS, RawObject, Resource
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound
from trainmaster_operator.controller.apiserver.pod_http import PodStream

NOW = "2026-11-21T04:00:00Z"


@dataclass
class FakeCluster:
    """Stores objects; see the module.

    `calls` counts (verb, kind), and `on_event` gets (type, resource, object) after each write. `admit` changes each new
    object, as an API server's strategies and webhooks do. `logs` is the containers' output so far, by pod, and
    `follows` their later output if the kubelet `opens` logs.
    """

    objects: dict[tuple[str, str, str], RawObject] = field(default_factory=dict)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    order: list[tuple[str, str, str]] = field(default_factory=list)
    # Each is raised by the next request whose verb and plural match.
    faults: list[tuple[str, str, ClusterError]] = field(default_factory=list)
    history: list[tuple[int, str, Resource, RawObject]] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    follows: dict[str, AsyncIterator[bytes]] = field(default_factory=dict)
    opens: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def fail(self, verb: str, plural: str, error: ClusterError, times: int = 1) -> None:
        self.faults += [(verb, plural, error)] * times

    def version(self) -> str:
        """Returns the resourceVersion of a list that is made now."""
        return str(next(self._versions))

    def put(self, resource: Resource, raw: Mapping[str, Any], *, publish: bool = True) -> RawObject:
        """Writes an object as another client would."""
        metadata = raw["metadata"]
        place = (resource.plural, str(metadata["namespace"]), str(metadata["name"]))
        before = self.objects.get(place)
        stored = copy.deepcopy(dict(raw))
        stored.setdefault("apiVersion", resource.api_version)
        stored.setdefault("kind", resource.kind)
        stored["metadata"] = {
            "uid": (before or {}).get("metadata", {}).get("uid") or metadata.get("uid") or str(uuid.uuid4()),
            "creationTimestamp": NOW,
            "generation": 1,
            **{name: value for name, value in metadata.items() if name != "resourceVersion"},
            "resourceVersion": str(next(self._versions)),
        }
        if before is not None and before.get("spec") != stored.get("spec"):
            stored["metadata"]["generation"] = before["metadata"]["generation"] + 1
        self.objects[place] = stored
        if publish:
            self._publish("MODIFIED" if before else "ADDED", resource, stored)
        return copy.deepcopy(stored)

    def remove(self, resource: Resource, namespace: str, name: str, *, publish: bool = True) -> None:
        """Deletes an object as another client would; without `publish`, no watch shows it."""
        gone = self.objects.pop((resource.plural, namespace, name))
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        if publish:
            self._publish("DELETED", resource, gone)

    def _publish(self, kind: str, resource: Resource, raw: RawObject) -> None:
        self.history.append((int(raw["metadata"]["resourceVersion"]), kind, resource, copy.deepcopy(raw)))
        self.changed.set()
        self.changed = asyncio.Event()

    def _enter(self, verb: str, resource: Resource, name: str = "") -> None:
        self.calls[verb, resource.kind] += 1
        self.order.append((verb, resource.kind, name))
        for fault in self.faults:
            if fault[:2] == (verb, resource.plural):
                self.faults.remove(fault)
                raise fault[2]

    def _read(self, resource: Resource, namespace: str, name: str) -> RawObject:
        found = self.objects.get((resource.plural, namespace, name))
        if found is None:
            raise NotFound(f"{resource.plural}/{name}", f'{resource.plural} "{name}" not found', status=404)
        return found

    def served(self, resource: Resource) -> Resource:
        return resource

    async def discovers(self, resource: Resource) -> bool:
        return True

    async def get(self, resource: Resource, namespace: str, name: str) -> RawObject:
        await asyncio.sleep(0)
        self._enter("get", resource, name)
        return trimmed(resource, self._read(resource, namespace, name))

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[RawObject]]:
        await asyncio.sleep(0)
        self._enter("list", resource)
        items = [
            copy.deepcopy(raw)
            for (plural, where, _), raw in sorted(self.objects.items())
            if plural == resource.plural and namespace in (None, where) and selected(raw, label_selector)
        ]
        if metadata_only:
            items = [{"metadata": item["metadata"]} for item in items]
        items = [trimmed(resource, item) for item in items]
        for first in range(0, max(len(items), 1), resource.page):
            yield items[first : first + resource.page]

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> RawObject:
        await asyncio.sleep(0)
        name = str(body["metadata"]["name"])
        self._enter("create", resource, name)
        if (resource.plural, namespace, name) in self.objects:
            raise AlreadyExists(f"{resource.plural}/{name}", "already exists", status=409, reason="AlreadyExists")
        return trimmed(resource, self.put(resource, merge(body, {"metadata": {"namespace": namespace}})))

    async def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        await asyncio.sleep(0)
        self._enter("replace", resource, name)
        self._check(self._read(resource, namespace, name), body["metadata"])
        return trimmed(resource, self.put(resource, body))

    async def apply(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        await asyncio.sleep(0)
        self._enter("apply", resource, name)
        before = self.objects.get((resource.plural, namespace, name), {})
        if before:
            self._check(before, body["metadata"])
        elif body["metadata"].get("uid"):
            raise Conflict(name, "uid mismatch: no existing object was found", status=409, reason="Conflict")
        merged = merge(before, body)
        merged["metadata"]["namespace"] = namespace
        return trimmed(resource, self.put(resource, merged))

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, status: bool = False
    ) -> RawObject:
        await asyncio.sleep(0)
        self._enter("patch status" if status else "patch", resource, name)
        before = self._read(resource, namespace, name)
        self._check(before, body.get("metadata") or {})
        changes = {"status": body.get("status") or {}} if status else dict(body)
        return trimmed(resource, self.put(resource, merge(before, changes)))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", force: bool = False
    ) -> None:
        await asyncio.sleep(0)
        self._enter("delete", resource, name)
        self._check(self._read(resource, namespace, name), {"uid": uid, "resourceVersion": version or None})
        self.remove(resource, namespace, name)

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        tail_lines: int,
        limit_bytes: int,
        previous: bool = False,
        container: str = "worker",
    ) -> str:
        await asyncio.sleep(0)
        self._enter("log", PODS, pod)
        return self.logs.get(pod if container == "worker" else f"{pod}/{container}", "")

    @asynccontextmanager
    async def followed_log(self, namespace: str, pod: str, *, tail_lines: int) -> AsyncIterator[AsyncIterator[bytes]]:
        await asyncio.sleep(0)
        self._enter("follow", PODS, pod)
        if not self.opens:
            await asyncio.Event().wait()

        async def chunks() -> AsyncIterator[bytes]:
            yield self.logs.get(pod, "").encode()
            if pod in self.follows:
                async for chunk in self.follows[pod]:
                    yield chunk

        yield chunks()

    @asynccontextmanager
    async def pod_proxy(
        self,
        method: Literal["GET", "POST"],
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> AsyncIterator[PodStream]:
        raise NotFound(f"{method} {pod}{path}", "no agents here", status=404)
        yield

    def _check(self, before: RawObject, wanted: Mapping[str, Any]) -> None:
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) not in (None, before["metadata"][name]):
                raise Conflict(before["metadata"]["name"], f"{name} differs", status=409, reason="Conflict")


def trimmed(resource: Resource, raw: Mapping[str, Any]) -> RawObject:
    """Returns the part of an answer that the real cluster's client keeps."""
    found: RawObject = copy.deepcopy(dict(raw)) if resource.kept is None else prune(copy.deepcopy(raw), resource.kept)
    return found


def merge(before: Mapping[str, Any], changes: Mapping[str, Any]) -> RawObject:
    """Applies a JSON merge patch (RFC 7386)."""
    result = copy.deepcopy(dict(before))
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            inner = result.get(name)
            result[name] = merge(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def selected(raw: Mapping[str, Any], selector: str) -> bool:
    """Applies label selectors: `name`, `name=value`, `name!=value`, `name notin (value,value)`, joined by commas."""
    labels = raw["metadata"].get("labels") or {}
    for term in filter(None, re.split(r",(?![^(]*\))", selector)):
        if " notin " in term:
            name, values = term.rstrip(")").split(" notin (")
            if labels.get(name) in values.split(","):
                return False
        elif "!=" in term:
            name, value = term.split("!=")
            if labels.get(name) == value:
                return False
        elif "=" in term:
            name, value = term.split("=")
            if labels.get(name) != value:
                return False
        elif term not in labels:
            return False
    return True
