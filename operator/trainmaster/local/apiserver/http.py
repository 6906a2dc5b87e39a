"""The API over HTTP: Kubernetes' REST protocol, by aiohttp, on plain HTTP with bearer tokens.

    server = ApiServer(api, authenticator=StaticTokens({token: admin}), authorizer=rbac)
    url = await server.start("127.0.0.1", 0)

Everything of substance is in `Api`; here requests are decoded, asked for permission, disturbed by `faults`, and
answered in the form that the client accepts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import math
import random
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from trainmaster.local.apiserver import api as patches
from trainmaster.local.apiserver import codec, errors, parameters, routes
from trainmaster.local.apiserver.access import MASTERS, Access
from trainmaster.local.apiserver.answers import (
    error_response,
    event_json,
    json_response,
    list_body,
    object_body,
    warning_headers,
)
from trainmaster.local.apiserver.api import Api, Options, Watch
from trainmaster.local.apiserver.auth import Attributes, Authenticator, Authorizer, refusal
from trainmaster.local.apiserver.codec import Form
from trainmaster.local.apiserver.deleting import DeleteOptions
from trainmaster.local.apiserver.descriptions import Descriptions, page_not_found
from trainmaster.local.apiserver.errors import ApiError
from trainmaster.local.apiserver.faults import Fault, Faults
from trainmaster.local.apiserver.resources import ResourceType, SubresourceCall, User
from trainmaster.local.apiserver.routes import Route
from trainmaster.local.apiserver.watching import WatchEvent

logger = logging.getLogger(__name__)

_BODY_LIMIT = 3 * 1024 * 1024
_HEADER_LIMIT = 64 * 1024
_BOOKMARK_SECONDS = 60.0
_WATCH_SECONDS = (1800, 3600)
_PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
_PATCHES = (patches.JSON, patches.MERGE, patches.STRATEGIC, patches.APPLY)


class ApiServer:
    """Serves an `Api` to whom `authenticator` knows and `authorizer` permits (see `Access`)."""

    def __init__(
        self,
        api: Api,
        *,
        authenticator: Authenticator | None = None,
        authorizer: Authorizer | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.api = api
        self.faults = faults or Faults()
        self._descriptions = Descriptions(api.registry)
        self._access = Access(authenticator, authorizer)
        self._runner: web.ServerRunner | None = None
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self.address = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> str:
        """Listens, and gives the server's URL. Port 0 is any free one. Without `tls` client-go sends no tokens."""
        server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            max_line_size=_HEADER_LIMIT,
            max_field_size=_HEADER_LIMIT,
        )
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound = self._runner.addresses[0]
        self.address = f"{bound[0]}:{bound[1]}"
        return f"{'https' if tls else 'http'}://{self.address}"

    def drop_watches(self) -> None:
        """Ends every open watch, as a server does that is restarted or sheds load."""
        for watch in list(self._watches):
            watch.close()

    async def stop(self) -> None:
        """Ends all watches and stops listening."""
        for watch in list(self._watches):
            watch.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            return error_response(error)
        except web.HTTPRequestEntityTooLarge:
            problem = f"Request entity too large: limit is {_BODY_LIMIT}"
            return error_response(ApiError(413, "RequestEntityTooLarge", problem))
        except ConnectionError:
            # The client has gone: there is nobody to answer, and aiohttp would log an error that is raised.
            return web.Response(status=499)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            return error_response(errors.internal(str(error)))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        user = self._access.authenticate(request)
        query = dict(request.query)
        route = routes.parse(request.method, path, query)
        if route is None:
            return await self._other(request, path, user)
        type_ = self.api.registry.find(route.group, route.version, route.resource)
        self._access.authorize(user, route)
        if type_ is None:
            if (route.group, route.version) not in {(t.group, t.version) for t in self.api.registry}:
                return page_not_found()
            raise errors.no_such_resource()
        fault = await self._disturb(type_, route)
        if fault is not None and fault.after:
            await self._resource(request, type_, route, query, user, None)
            self.faults.carried_out()
            raise fault.error(type_.qualified, route.name) or errors.internal("etcdserver: request timed out")
        return await self._resource(request, type_, route, query, user, fault)

    async def _disturb(self, type_: ResourceType, route: Route) -> Fault | None:
        """Carries out a fault: waits, answers in place of the server, or gives the fault that is still to act."""
        if self.faults.idle:
            return None
        resource = type_.qualified + (f"/{route.subresource}" if route.subresource else "")
        fault = self.faults.take(route.verb, resource, route.name, route.namespace)
        if fault is None:
            return None
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.after or (route.verb == "watch" and fault.code == 410):
            return fault
        error = fault.error(type_.qualified, route.name)
        if error is not None:
            raise error
        return fault

    async def _resource(
        self,
        request: web.BaseRequest,
        type_: ResourceType,
        route: Route,
        query: dict[str, str],
        user: User,
        fault: Fault | None,
    ) -> web.StreamResponse:
        subresource = type_.subresources.get(route.subresource) if route.subresource else None
        if subresource is not None and subresource.connect is not None:
            call = SubresourceCall(
                self.api, type_, route.subresource, route.verb, route.namespace, route.name, None, query, user
            )
            return await subresource.connect(call, request, route.rest)
        if subresource is None and not _allowed(type_, route):
            known = not route.subresource or (route.subresource == "status" and type_.has_status)
            raise errors.method_not_allowed() if known else errors.no_such_resource()
        form = codec.negotiate(request.headers.get("Accept", ""))
        if route.verb == "watch":
            return await self._watch(request, type_, route, query, form, fault)
        if route.verb in ("get", "list"):
            return await self._read(type_, route, query, form)
        return await self._write(request, type_, route, query, form, user)

    async def _read(self, type_: ResourceType, route: Route, query: dict[str, str], form: Form) -> web.StreamResponse:
        include = query.get("includeObject", "Metadata")
        if route.verb == "list":
            page = await self.api.list(
                type_,
                route.namespace,
                labels=query.get("labelSelector", ""),
                fields=query.get("fieldSelector", ""),
                limit=parameters.number(query, "limit"),
                token=query.get("continue", ""),
                version=query.get("resourceVersion", ""),
                match=query.get("resourceVersionMatch", ""),
            )
            body = list_body(type_, form, page, self.api.clock(), include)
            return json_response(body, content_type="application/yaml" if form.yaml else "application/json")
        if not route.subresource and not form.as_ and not form.yaml:
            return json_response(self.api.revision(self.api.plan(type_), route.name, route.namespace).json)
        obj = await self.api.get(type_, route.name, route.namespace, subresource=route.subresource)
        return self._object(type_, form, obj, include)

    def _object(self, type_: ResourceType, form: Form, obj: Any, include: str, status: int = 200) -> web.Response:
        same = obj.get("kind") == type_.kind
        body = object_body(type_, form, obj, self.api.clock(), include) if same else obj
        if form.yaml:
            return json_response(codec.to_yaml(body), status, content_type="application/yaml")
        return json_response(body, status)

    async def _write(
        self,
        request: web.BaseRequest,
        type_: ResourceType,
        route: Route,
        query: dict[str, str],
        form: Form,
        user: User,
    ) -> web.StreamResponse:
        raw = await request.read()
        content = request.headers.get("Content-Type", "") if raw else ""
        include = query.get("includeObject", "Metadata")
        if route.verb in ("delete", "deletecollection"):
            return await self._delete(type_, route, query, form, raw, content, include)
        if route.namespace == "" and type_.namespaced and route.verb == "create":
            raise errors.bad_request("an empty namespace may not be set during creation")
        options = parameters.write_options(request, query, user, patch=route.verb == "patch")
        if route.verb == "patch":
            status, obj = await self._patch(type_, route, query, raw, content, options)
        else:
            decoded = codec.decode(raw, content, "Scale" if route.subresource == "scale" else type_.kind)
            options = dataclasses.replace(options, duplicates=decoded.duplicates)
            if route.verb == "create":
                status = 201
                obj = await self.api.create(
                    type_,
                    decoded.value,
                    route.namespace,
                    name=route.name,
                    subresource=route.subresource,
                    options=options,
                )
            else:
                status = 201 if self._is_new(type_, route) else 200
                obj = await self.api.update(
                    type_,
                    decoded.value,
                    route.namespace,
                    name=route.name,
                    subresource=route.subresource,
                    options=options,
                )
        answer = self._object(type_, form, obj, include, status)
        warning_headers(answer, options.warnings)
        return answer

    def _is_new(self, type_: ResourceType, route: Route) -> bool:
        return self.api.peek(type_.qualified, route.name, route.namespace if type_.namespaced else "") is None

    async def _patch(
        self, type_: ResourceType, route: Route, query: dict[str, str], raw: bytes, content: str, options: Options
    ) -> tuple[int, Any]:
        kind = content.partition(";")[0].strip()
        accepted = [patch for patch in _PATCHES if not (type_.custom and patch == patches.STRATEGIC)]
        if kind not in accepted:
            raise errors.unsupported_media_type(accepted)
        decoded = codec.decode(raw, content, type_.kind, (*_PATCHES, "application/yaml"))
        options = dataclasses.replace(options, duplicates=decoded.duplicates)
        if kind == patches.APPLY:
            if not isinstance(decoded.value, dict):
                raise errors.bad_request(f"the object provided is unrecognized (must be of type {type_.kind})")
            status = 201 if self._is_new(type_, route) else 200
            force = query.get("force", "").lower() in ("1", "true")
            options = dataclasses.replace(options, manager=query.get("fieldManager", ""))
            obj = await self.api.apply(
                type_,
                route.name,
                decoded.value,
                route.namespace,
                force=force,
                subresource=route.subresource,
                options=options,
            )
            return status, obj
        if query.get("force"):
            error = errors.FieldError.forbidden("force", "may not be specified for non-apply patch")
            raise parameters.options_error("PatchOptions", error)
        obj = await self.api.patch(
            type_,
            route.name,
            decoded.value,
            route.namespace,
            kind=kind,
            subresource=route.subresource,
            options=options,
        )
        return 200, obj

    async def _delete(
        self,
        type_: ResourceType,
        route: Route,
        query: dict[str, str],
        form: Form,
        raw: bytes,
        content: str,
        include: str,
    ) -> web.StreamResponse:
        body = codec.decode(raw, content, "DeleteOptions").value if raw else None
        options = DeleteOptions.parse(body, query)
        if route.verb == "delete":
            obj = await self.api.delete(type_, route.name, route.namespace, options=options)
            return self._object(type_, form, obj, include)
        page = await self.api.delete_collection(
            type_,
            route.namespace,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
            options=options,
        )
        return json_response(list_body(type_, form, page, self.api.clock(), include))

    async def _watch(
        self,
        request: web.BaseRequest,
        type_: ResourceType,
        route: Route,
        query: dict[str, str],
        form: Form,
        fault: Fault | None,
    ) -> web.StreamResponse:
        bookmarks = parameters.is_true(query, "allowWatchBookmarks")
        initial = parameters.is_true(query, "sendInitialEvents") if "sendInitialEvents" in query else None
        parameters.check_initial(query, initial, bookmarks)
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
        answer.enable_chunked_encoding()
        include = query.get("includeObject", "Metadata")
        header = True

        def encoded(events: list[WatchEvent]) -> bytes:
            nonlocal header
            lines = []
            for event in events:
                lines.append(event_json(type_, form, event, self.api.clock(), include, header=header))
                header = header and event.type == "BOOKMARK"
            return b"".join(lines)

        try:
            if fault is not None and fault.code == 410:
                raise errors.expired("The resourceVersion for the provided watch is too old.")
            watch = await self.api.watch(
                type_,
                route.namespace,
                labels=query.get("labelSelector", ""),
                fields=query.get("fieldSelector", ""),
                version=query.get("resourceVersion", ""),
                initial=initial,
                bookmarks=bookmarks,
            )
        except ApiError as error:
            if error.code != 410:
                raise
            await answer.prepare(request)
            await answer.write(orjson.dumps({"type": "ERROR", "object": error.status}) + b"\n")
            await answer.write_eof()
            return answer
        seconds = float(parameters.number(query, "timeoutSeconds") or random.uniform(*_WATCH_SECONDS))
        if fault is not None and fault.drop is not None:
            seconds = min(seconds, fault.drop)
        bookmark = functools.partial(self.api.bookmark, self.api.plan(type_)) if bookmarks else None
        # The client may go at any time.
        with contextlib.suppress(ConnectionResetError):
            async with watch:
                self._watches.add(watch)
                await answer.prepare(request)
                async for events in _until(watch, seconds, bookmark):
                    await answer.write(encoded(events))
            await answer.write_eof()
        return answer

    async def _other(self, request: web.BaseRequest, path: str, user: User) -> web.StreamResponse:
        """Everything that isn't a resource: discovery, OpenAPI, health, version, faults."""
        if not path.startswith(_PUBLIC):
            self._access.permit(Attributes(user, request.method.lower(), path=path))
        if path == "/-/faults":
            return await self._fault_rules(request, user)
        if request.method != "GET":
            return page_not_found()
        return self._descriptions.answer(path, request.headers.get("Accept", ""), self.address)

    async def _fault_rules(self, request: web.BaseRequest, user: User) -> web.Response:
        if MASTERS not in user.groups:
            raise refusal(Attributes(user, request.method.lower(), path="/-/faults"))
        if request.method in ("PUT", "POST"):
            body = codec.decode(await request.read(), "application/json", "Fault").value
            rules = [Fault.parse(rule) for rule in (body if isinstance(body, list) else [body])]
            if request.method == "PUT":
                self.faults.clear()
            for rule in rules:
                self.faults.add(rule)
        elif request.method == "DELETE":
            self.faults.clear()
        return json_response(self.faults.as_json())


async def _until(
    watch: Watch, seconds: float, bookmark: Callable[[], WatchEvent] | None
) -> AsyncIterator[list[WatchEvent]]:
    """A watch's events as they come, for `seconds`; with a bookmark every minute where they are asked for."""
    end = time.monotonic() + seconds
    bookmark_at = time.monotonic() + _BOOKMARK_SECONDS if bookmark else math.inf
    while True:
        events = watch.pending()
        now = time.monotonic()
        if not events and (watch.closed or now >= end):
            return
        if bookmark and now >= bookmark_at:
            events.append(bookmark())
            bookmark_at = now + _BOOKMARK_SECONDS
        if events:
            yield events
        else:
            await watch.wait(min(end, bookmark_at) - now)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request whose body may be as large as kube-apiserver lets it be."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_BODY_LIMIT)


def _allowed(type_: ResourceType, route: Route) -> bool:
    if route.subresource == "status":
        return type_.has_status and route.verb in ("get", "patch", "update")
    if route.subresource == "scale":
        return type_.scale is not None and route.verb in ("get", "patch", "update")
    return not route.subresource and route.verb in type_.verbs
