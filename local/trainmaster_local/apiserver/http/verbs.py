"""Answers a resource's verbs over HTTP: get, list, watch, create, update, patch and delete.

Each verb decodes the request, calls the `Api`, and answers in the form that the client accepts. `server` has already
checked the permission.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from trainmaster_local.apiserver import api as patches
from trainmaster_local.apiserver.api import Api, Options, Watch
from trainmaster_local.apiserver.apimachinery import errors
from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.http import codec, parameters, yaml_bodies
from trainmaster_local.apiserver.http.answers import event_json, json_response, list_body, object_body, warning_headers
from trainmaster_local.apiserver.http.codec import Form
from trainmaster_local.apiserver.http.faults import Fault
from trainmaster_local.apiserver.http.routes import Route
from trainmaster_local.apiserver.resources import ResourceType, SubresourceCall, User
from trainmaster_local.apiserver.storage.watching import WatchEvent
from trainmaster_local.apiserver.writing.deleter import DeleteOptions

_BOOKMARK_SECONDS = 60.0
_WATCH_SECONDS = (1800, 3600)
_PATCHES = (patches.JSON, patches.MERGE, patches.STRATEGIC, patches.APPLY)


@dataclass(frozen=True)
class Call:
    """A call is a request about a resource of a served type."""

    request: web.BaseRequest
    type: ResourceType
    route: Route
    user: User
    query: dict[str, str]

    @functools.cached_property
    def form(self) -> Form:
        """Returns the form of the answer that the client accepts. Raises ApiError (406) if it accepts none."""
        return codec.negotiate(self.request.headers.get("Accept", ""))

    @property
    def include(self) -> str:
        """Returns which part of each object a table's rows include."""
        return self.query.get("includeObject", "Metadata")

    @property
    def selectors(self) -> dict[str, str]:
        return {"labels": self.query.get("labelSelector", ""), "fields": self.query.get("fieldSelector", "")}


class Verbs:
    """This class answers calls with the results of an `Api`, and keeps a list of the open watches."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()

    def drop_watches(self) -> None:
        """Ends every open watch."""
        for watch in list(self._watches):
            watch.close()

    async def answer(self, call: Call, fault: Fault | None) -> web.StreamResponse:
        """Carries out a call; `fault` disturbs a watch."""
        type_, route = call.type, call.route
        subresource = type_.subresources.get(route.subresource) if route.subresource else None
        if subresource is not None and subresource.connect is not None:
            if route.subresource != "log":
                self._api.admit_connection(type_, subresource, route.namespace, route.name, call.user)
            connection = SubresourceCall(
                self._api,
                type_,
                route.subresource,
                route.verb,
                route.namespace,
                route.name,
                None,
                call.query,
                call.user,
            )
            return await subresource.connect(connection, call.request, route.rest)
        if subresource is None and not _allowed(type_, route):
            known = not route.subresource or (route.subresource == "status" and type_.has_status)
            raise errors.method_not_allowed() if known else errors.no_such_resource()
        # This is checked first: a write whose answer the client couldn't read isn't carried out.
        _ = call.form
        if route.verb == "watch":
            return await self._watch(call, fault)
        if route.verb == "list":
            return await self._list(call)
        if route.verb == "get":
            return await self._get(call)
        if route.verb in ("delete", "deletecollection"):
            return await self._delete(call)
        return await self._write(call)

    async def _list(self, call: Call) -> web.Response:
        page = await self._api.list(
            call.type,
            call.route.namespace,
            **call.selectors,
            limit=parameters.number(call.query, "limit"),
            token=call.query.get("continue", ""),
            version=call.query.get("resourceVersion", ""),
            match=call.query.get("resourceVersionMatch", ""),
        )
        body = list_body(call.type, call.form, page, self._api.clock(), call.include)
        return json_response(body)

    async def _get(self, call: Call) -> web.Response:
        type_, route, form = call.type, call.route, call.form
        if not route.subresource and not form.as_:
            return json_response(self._api.revision(self._api.plan(type_), route.name, route.namespace).json)
        return self._object(
            call, await self._api.get(type_, route.name, route.namespace, subresource=route.subresource)
        )

    def _object(self, call: Call, obj: Any, status: int = 200) -> web.Response:
        same = obj.get("kind") == call.type.kind
        body = object_body(call.type, call.form, obj, self._api.clock(), call.include) if same else obj
        return json_response(body, status)

    async def _write(self, call: Call) -> web.Response:
        """Answers create, update and patch."""
        request, type_, route = call.request, call.type, call.route
        raw = await request.read()
        content = request.headers.get("Content-Type", "") if raw or route.verb == "patch" else ""
        if route.namespace == "" and type_.namespaced and route.verb == "create":
            raise errors.bad_request("an empty namespace may not be set during creation")
        options = parameters.write_options(request, call.query, call.user, patch=route.verb == "patch")
        try:
            status, obj = await self._written(call, raw, content, options)
        except ApiError as error:
            error.warnings = tuple(options.warnings)
            raise
        answer = self._object(call, obj, status)
        warning_headers(answer, options.warnings)
        return answer

    async def _written(self, call: Call, raw: bytes, content: str, options: Options) -> tuple[int, Any]:
        type_, route = call.type, call.route
        if route.verb == "patch":
            return await self._patch(call, raw, content, options)
        decoded = codec.decode(raw, content, "Scale" if route.subresource == "scale" else type_.kind)
        options = dataclasses.replace(options, duplicates=decoded.duplicates)
        status = 201 if route.verb == "create" or self._is_new(call) else 200
        write = self._api.create if route.verb == "create" else self._api.update
        obj = await write(
            type_,
            decoded.value,
            route.namespace,
            name=route.name,
            subresource=route.subresource,
            options=options,
        )
        return status, obj

    def _is_new(self, call: Call) -> bool:
        type_, route = call.type, call.route
        return self._api.peek(type_.qualified, route.name, route.namespace if type_.namespaced else "") is None

    async def _patch(self, call: Call, raw: bytes, content: str, options: Options) -> tuple[int, Any]:
        type_, route, query = call.type, call.route, call.query
        kind = content.partition(";")[0].strip()
        accepted = [patch for patch in _PATCHES if not (type_.custom and patch == patches.STRATEGIC)]
        if kind not in accepted:
            raise errors.unsupported_media_type(accepted)
        decoded = yaml_bodies.decode(raw) if kind == patches.APPLY else codec.decode(raw, content, type_.kind, _PATCHES)
        options = dataclasses.replace(options, duplicates=decoded.duplicates)
        if kind == patches.APPLY:
            status = 201 if self._is_new(call) else 200
            force = query.get("force", "").lower() in ("1", "true")
            options = dataclasses.replace(options, manager=query.get("fieldManager", ""))
            obj = await self._api.apply(
                type_,
                route.name,
                decoded.value or {},
                route.namespace,
                force=force,
                subresource=route.subresource,
                options=options,
            )
            return status, obj
        if query.get("force"):
            error = errors.FieldError.forbidden("force", "may not be specified for non-apply patch")
            raise parameters.options_error("PatchOptions", error)
        obj = await self._api.patch(
            type_,
            route.name,
            decoded.value,
            route.namespace,
            kind=kind,
            subresource=route.subresource,
            options=options,
        )
        return 200, obj

    async def _delete(self, call: Call) -> web.Response:
        """Answers delete and deletecollection."""
        raw = await call.request.read()
        content = call.request.headers.get("Content-Type", "")
        body = codec.decode(raw, content, "DeleteOptions").value if raw else None
        options = DeleteOptions.parse(body, call.query, call.user)
        type_, route = call.type, call.route
        if route.verb == "delete":
            return self._object(call, await self._api.delete(type_, route.name, route.namespace, options=options))
        page = await self._api.delete_collection(type_, route.namespace, **call.selectors, options=options)
        return json_response(list_body(type_, call.form, page, self._api.clock(), call.include))

    async def _watch(self, call: Call, fault: Fault | None) -> web.StreamResponse:
        query = call.query
        bookmarks = parameters.is_true(query, "allowWatchBookmarks")
        initial = parameters.is_true(query, "sendInitialEvents") if "sendInitialEvents" in query else None
        parameters.check_initial(query, initial, bookmarks)
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
        answer.enable_chunked_encoding()
        try:
            if fault is not None and fault.code == 410:
                raise errors.expired("The resourceVersion for the provided watch is too old.")
            watch = await self._api.watch(
                call.type,
                call.route.namespace,
                **call.selectors,
                version=query.get("resourceVersion", ""),
                initial=initial,
                bookmarks=bookmarks,
            )
        except ApiError as error:
            if error.code != 410:
                raise
            await answer.prepare(call.request)
            await answer.write(orjson.dumps({"type": "ERROR", "object": error.status}) + b"\n")
            await answer.write_eof()
            return answer
        seconds = float(parameters.number(query, "timeoutSeconds") or random.uniform(*_WATCH_SECONDS))
        if fault is not None and fault.drop is not None:
            seconds = min(seconds, fault.drop)
        bookmark = functools.partial(self._api.bookmark, self._api.plan(call.type)) if bookmarks else None
        encoded = self._encoder(call)
        # The client may leave at any time.
        with contextlib.suppress(ConnectionResetError):
            async with watch:
                self._watches.add(watch)
                await answer.prepare(call.request)
                async for events in _until(watch, seconds, bookmark):
                    await answer.write(encoded(events))
            await answer.write_eof()
        return answer

    def _encoder(self, call: Call) -> Callable[[list[WatchEvent]], bytes]:
        """Returns the encoder of one watch's events. In tables, only the first object contains the columns."""
        header = True

        def encoded(events: list[WatchEvent]) -> bytes:
            nonlocal header
            lines = []
            for event in events:
                lines.append(event_json(call.type, call.form, event, self._api.clock(), call.include, header=header))
                header = header and event.type == "BOOKMARK"
            return b"".join(lines)

        return encoded


async def _until(
    watch: Watch, seconds: float, bookmark: Callable[[], WatchEvent] | None
) -> AsyncIterator[list[WatchEvent]]:
    """Yields a watch's events as they arrive, for `seconds`; with a bookmark every minute if requested."""
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


def _allowed(type_: ResourceType, route: Route) -> bool:
    if route.subresource == "status":
        return type_.has_status and route.verb in ("get", "patch", "update")
    if route.subresource == "scale":
        return type_.scale is not None and route.verb in ("get", "patch", "update")
    return not route.subresource and route.verb in type_.verbs
