"""An API server keeps jobs in memory, and knows every token's user and rights."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from trainmaster.client.job import items_of
from trainmaster.client.permission import REVIEWS
from trainmaster.client.server import Fixed, Server
from trainmaster_operator.api.times import to_micro_text

JOBS = "distributedtrainingjobs"
Right = tuple[str, str, str]
VIEW: frozenset[Right] = frozenset(
    {(verb, resource, "") for verb in ("get", "list", "watch") for resource in (JOBS, "pods", "pods/log", "pods/proxy")}
    | {("list", "events", ""), ("get", "configmaps", "")}
)
EDIT = VIEW | {("patch", JOBS, "")}


def within(namespace: str, rights: frozenset[Right]) -> frozenset[Right]:
    """Returns rights in one namespace only."""
    return frozenset((verb, resource, namespace) for verb, resource, _ in rights)


def job(name: str, namespace: str = "team", **status: Any) -> dict[str, Any]:
    """Returns a job as the API server shows it."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": "2026-11-26T01:00:00Z"}
    status = {"phase": "Running", "attempt": 1, "workers": {"running": 2, "desired": 2}, **status}
    return {"apiVersion": "trainmaster.dev/v1alpha1", "metadata": metadata, "spec": {"workers": 2}, "status": status}


@dataclass
class FakeApi:
    """Answers by `rights`, which are by token, about the given jobs and pods; `asked` counts (token, verb,
    resource).
    """

    rights: dict[str, frozenset[Right]] = field(default_factory=dict)
    url: str = ""
    asked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    pods: list[dict[str, Any]] = field(default_factory=list)
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    # For each pod, the lines of its log, which is then followed until the job is over.
    logs: dict[str, list[str]] = field(default_factory=dict)
    lines_sent: int = 0
    logs_open: int = 0
    most_logs: int = 0
    # The requests' Accept-Encoding headers.
    encodings: set[str | None] = field(default_factory=set)
    metrics: str = ""
    # The HTTP status of all answers while it is broken.
    broken: int = 0
    # When the operator renewed its Lease; 0 if it has none.
    renewed_at: float = 0.0
    watches: set[tuple[str, str]] = field(default_factory=set)
    _version: int = 0
    _events: list[tuple[int, bytes, str]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def server(self) -> Server:
        return Server(self.url, None, None, None, Fixed(None), "default")

    def put(self, *jobs: dict[str, Any]) -> None:
        """Creates or changes jobs."""
        for one in jobs:
            key = (one["metadata"]["namespace"], one["metadata"]["name"])
            self._happens("MODIFIED" if key in self.objects else "ADDED", one)
            self.objects[key] = one

    def delete(self, name: str, namespace: str = "team") -> None:
        """Deletes a job."""
        self._happens("DELETED", self.objects.pop((namespace, name)))

    def _happens(self, kind: str, one: dict[str, Any]) -> None:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": kind, "object": one}).encode() + b"\n"
        self._events = [*self._events[-5000:], (self._version, line, one["metadata"]["namespace"])]
        self._changed.set()
        self._changed = asyncio.Event()

    def may(self, token: str, verb: str, resource: str, namespace: str) -> bool:
        rights = self.rights.get(token, frozenset())
        return bool({(verb, resource, namespace), (verb, resource, "")} & rights)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.rights:
            return _status(401, "Unauthorized", "Unauthorized")
        if self.broken:
            return _status(self.broken, "InternalError", "etcd is away")
        if request.path == REVIEWS:
            asked = (await request.json())["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource", ""))))
            self.asked[token, "review", resource] += 1
            allowed = self.may(token, asked["verb"], resource, asked.get("namespace", ""))
            return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}})
        if request.path.endswith("/selfsubjectreviews"):
            return web.json_response({"kind": "SelfSubjectReview", "status": {"userInfo": {"username": f"u-{token}"}}})
        return await self._object(request, token)

    async def _object(self, request: web.Request, token: str) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        resource, name = parts[0], parts[1] if len(parts) > 1 else ""
        what = f"{resource}/{parts[2]}" if len(parts) > 2 else resource
        reading = "get" if name else "watch" if "watch" in request.query else "list"
        verb = "patch" if request.method == "PATCH" else reading
        self.asked[token, verb, what] += 1
        self.encodings.add(request.headers.get("Accept-Encoding"))
        if not self.may(token, verb, what, namespace):
            return _status(403, "Forbidden", f'u-{token} cannot {verb} resource "{what}" in namespace "{namespace}"')
        if what == "pods/proxy":
            return web.Response(text=self.metrics)
        if what == "pods/log":
            self.logs_open += 1
            self.most_logs = max(self.most_logs, self.logs_open)
            try:
                return await self._log(request, name)
            finally:
                self.logs_open -= 1
        if resource == "leases" and self.renewed_at:
            return web.json_response({"kind": "Lease", "spec": {"renewTime": to_micro_text(self.renewed_at)}})
        if resource == JOBS and name:
            found = self.objects.get((namespace, name))
            if found is None:
                return _status(404, "NotFound", f"{name} not found")
            if request.method == "PATCH":
                found = _merged(found, json.loads(await request.read()))
                self.put(found)
            return web.json_response({"kind": "DistributedTrainingJob", **found})
        if verb == "watch":
            return await self._watch(request, token, namespace)
        items: list[Any] = []
        if resource == JOBS:
            items = [one for (where, _), one in self.objects.items() if namespace in ("", where)]
        elif resource == "pods":
            items = self.pods
        elif resource == "events":
            path, _, wanted = request.query.get("fieldSelector", "").rpartition("=")
            items = [one for one in self.events if one["involvedObject"][path.rpartition(".")[2]] == wanted]
        elif name:
            return _status(404, "NotFound", f"{name} not found")
        assert items_of({"items": items}) == items
        first, most = int(request.query.get("continue") or 0), int(request.query.get("limit") or 10**6)
        more = str(first + most) if len(items) > first + most else ""
        metadata = {"resourceVersion": str(self._version), "continue": more}
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[first : first + most]})

    async def _watch(self, request: web.Request, token: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        of = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        self.watches.add((token, namespace))
        try:
            while not self.broken:
                changed = self._changed
                news = [event for event in self._events if event[0] > seen]
                for version, line, where in news:
                    seen = version
                    if namespace in ("", where) and (not of or f'"name": "{of}"'.encode() in line):
                        await response.write(line)
                await changed.wait()
        finally:
            self.watches.discard((token, namespace))
        return response

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while True:
            changed = self._changed
            for line in self.logs[pod][sent:]:
                await response.write(line.encode() + b"\n")
                sent += 1
                self.lines_sent += 1
            if "follow" not in request.query:
                return response
            await changed.wait()

    def say(self, pod: str, line: str) -> None:
        """Adds a line to a rank's log, at a later time than the one before."""
        lines = self.logs.setdefault(pod, [])
        lines.append(f"2026-11-26T02:00:{len(lines):02}Z {line}")
        self._changed.set()
        self._changed = asyncio.Event()

    def break_watches(self) -> None:
        """Makes all watches check whether they have to end."""
        self._changed.set()
        self._changed = asyncio.Event()


def running_pod(worker: int, name: str = "bert") -> dict[str, Any]:
    """Returns a worker's pod."""
    labels = {"apps.kubernetes.io/pod-index": str(worker), "trainmaster.dev/job-name": name}
    ready = {"type": "Ready", "status": "True"}
    state = {"name": "worker", "restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": {"name": f"{name}-{worker}", "namespace": "team", "uid": f"pod-{worker}", "labels": labels},
        "spec": {"nodeName": f"node-{worker}"},
        "status": {"phase": "Running", "containerStatuses": [state], "conditions": [ready]},
    }


def _merged(known: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(known) if isinstance(known, dict) else {}
    for name, value in patch.items():
        found[name] = _merged(found.get(name), value) if isinstance(value, dict) else value
    return found


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


@asynccontextmanager
async def serving_api(api: FakeApi, port: int = 0) -> AsyncIterator[FakeApi]:
    """Serves on a free port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
