"""`FakeCluster` serves over HTTP: discovery, lists and watches as kopf asks for them, with faults in the watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.unit.controller.fake_cluster import FakeCluster, selected
from trainmaster_operator.controller.apiserver.cluster import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
    whole,
)
from trainmaster_operator.controller.apiserver.errors import ClusterError

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
SERVED = (JOBS, PODS, SERVICES, CONFIG_MAPS, STATEFUL_SETS, EVENTS, LEASES, SECRETS, NAMESPACES, CRDS)


@dataclass
class FakeHttp:
    """Serves the fake cluster. Setting `expire` answers every open watch with 410; `break_watches` sends
    another error.
    """

    cluster: FakeCluster
    url: str = ""
    crd_installed: bool = True
    # Whether discovery lists the custom resource.
    crd_discovered: bool = True
    # Replacements for strings: JSON that Python itself wouldn't write.
    written_as: dict[str, str] = field(default_factory=dict)
    # Functions that return a review's status for its spec, by plural.
    reviews: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    watches: dict[str, int] = field(default_factory=dict)
    lists: dict[str, int] = field(default_factory=dict)
    # The most objects in one answer, by plural.
    largest_page: dict[str, int] = field(default_factory=dict)
    _interrupt: asyncio.Event = field(default_factory=asyncio.Event)
    _error: dict[str, Any] | None = None
    # Older resource versions can't be watched any more.
    oldest: int = 0

    def expire(self) -> None:
        """Ends every watch with 410 and forgets older versions, as after an etcd compaction."""
        self.oldest = 1_000_000_000
        self._cut({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
        self.oldest = 0

    def break_watches(self) -> None:
        """Ends every watch with an error other than 410."""
        self._cut({"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd: no leader"})

    def drop_connections(self) -> None:
        """Ends every watch's connection without an error."""
        self._cut(None)

    def _cut(self, error: dict[str, Any] | None) -> None:
        self._error = error
        self._interrupt.set()
        self._interrupt = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if parts == ["version"]:
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
        served = [r for r in SERVED if self.crd_installed or r != JOBS]
        discovered = [r for r in served if self.crd_discovered or r != JOBS]
        if parts == ["api"]:
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if parts == ["apis"]:
            return web.json_response({"kind": "APIGroupList", "groups": [_group(r) for r in discovered if r.group]})
        group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        mine = [r for r in served if (r.group, r.version) == (group, version)]
        if not rest:
            full = f"{group}/{version}" if group else version
            named = [_discovered(r) for r in mine]
            return web.json_response({"kind": "APIResourceList", "groupVersion": full, "resources": named})
        if rest[0] in self.reviews:
            asked = json.loads(await request.read())
            return web.json_response({**asked, "status": self.reviews[rest[0]](asked["spec"])}, status=201)
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource = next((r for r in mine if r.plural == rest[0]), None)
        if resource is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        try:
            return await self._serve(request, resource, namespace, *rest[1:])
        except ClusterError as error:
            return web.json_response(
                {"kind": "Status", "code": error.status, "reason": error.reason, "message": error.message},
                status=error.status or 500,
            )

    async def _serve(
        self,
        request: web.Request,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> web.StreamResponse:
        resource = whole(resource)
        selector = request.query.get("labelSelector", "")
        if request.method == "GET" and request.query.get("watch"):
            return await self._watch(request, resource, namespace, selector)
        if request.method == "GET" and name is None:
            self.lists[resource.plural] = self.lists.get(resource.plural, 0) + 1
            metadata_only = "PartialObjectMetadataList" in request.headers.get("Accept", "")
            version = self.cluster.version()
            pages = self.cluster.pages(resource, namespace, label_selector=selector, metadata_only=metadata_only)
            items = [item async for page in pages for item in page]
            start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(items))
            metadata = {"resourceVersion": version}
            sent = len(items[start : start + limit])
            self.largest_page[resource.plural] = max(sent, self.largest_page.get(resource.plural, 0))
            if start + limit < len(items):
                metadata["continue"] = str(start + limit)
            return web.json_response(
                {
                    "kind": f"{resource.kind}List",
                    "apiVersion": resource.api_version,
                    "metadata": metadata,
                    "items": items[start : start + limit],
                },
                dumps=self._text,
            )
        assert namespace is not None
        if request.method == "GET":
            return web.json_response(await self.cluster.get(resource, namespace, str(name)), dumps=self._text)
        body = json.loads(await request.read())
        if request.method == "POST":
            return web.json_response(await self.cluster.create(resource, namespace, body), status=201)
        if request.method == "PUT":
            return web.json_response(await self.cluster.replace(resource, namespace, str(name), body))
        if request.method == "DELETE":
            wanted = body.get("preconditions") or {}
            version = wanted.get("resourceVersion", "")
            await self.cluster.delete(resource, namespace, str(name), uid=wanted["uid"], version=version)
            return web.json_response({"kind": "Status", "status": "Success"})
        if "apply-patch" in request.headers["Content-Type"]:
            return web.json_response(await self.cluster.apply(resource, namespace, str(name), body))
        answer = await self.cluster.patch(resource, namespace, str(name), body, status=subresource == "status")
        return web.json_response(answer, dumps=self._text)

    def _text(self, value: Any) -> str:
        text = json.dumps(value)
        for placeholder, written in self.written_as.items():
            text = text.replace(json.dumps(placeholder), written)
        return text

    async def _watch(
        self, request: web.Request, resource: Resource, namespace: str | None, selector: str
    ) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        self.watches[resource.plural] = self.watches.get(resource.plural, 0) + 1
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        interrupt, sent = self._interrupt, 0
        while True:
            changed = self.cluster.changed
            for version, kind, of, raw in self.cluster.history[sent:]:
                sent += 1
                where = raw["metadata"]["namespace"]
                if version > since and of == resource and namespace in (None, where) and selected(raw, selector):
                    await response.write(self._text({"type": kind, "object": raw}).encode() + b"\n")
            waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(interrupt.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if interrupt.is_set():
                if self._error is not None:
                    await response.write(json.dumps({"type": "ERROR", "object": self._error}).encode() + b"\n")
                return response


@asynccontextmanager
async def serving(cluster: FakeCluster) -> AsyncIterator[FakeHttp]:
    """Serves on a free port."""
    fake = FakeHttp(cluster)
    app = web.Application(client_max_size=3 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        fake.drop_connections()
        await runner.cleanup()


def kubeconfig(folder: Path, url: str) -> str:
    """Writes a kubeconfig without credentials."""
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "fake", "cluster": {"server": url}}],
                "users": [{"name": "fake", "user": {}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "current-context": "fake",
            }
        )
    )
    return str(path)


def _group(resource: Resource) -> dict[str, Any]:
    version = {"groupVersion": resource.api_version, "version": resource.version}
    return {"name": resource.group, "versions": [version], "preferredVersion": version}


def _discovered(resource: Resource) -> dict[str, Any]:
    return {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "kind": resource.kind,
        "namespaced": resource not in (NAMESPACES, CRDS),
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    }
