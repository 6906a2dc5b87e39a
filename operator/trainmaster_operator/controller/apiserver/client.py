"""`Cluster` over `kubernetes.aio`: its configuration, credentials and connection pool, with raw JSON in and out.

The generated typed API isn't used: it decodes every object into classes (10 times the time of `json.loads`) and drops
fields that it doesn't know, and server-side apply must not lose any.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from trainmaster_operator.api.json_codec import encode
from trainmaster_operator.controller.apiserver.cluster import LATER_VERSIONS, PODS, PodStream, RawObject, Resource
from trainmaster_operator.controller.apiserver.connection import Connection
from trainmaster_operator.controller.apiserver.decoding import decoded
from trainmaster_operator.controller.apiserver.errors import (
    Deposed,
    NotFound,
    Refused,
    Unreachable,
    Unusable,
    is_unserved,
)
from trainmaster_operator.controller.apiserver.kept import Fields, listed, metadata_of
from trainmaster_operator.controller.apiserver.pod_http import (
    API_ERROR_BYTES,
    IDENTITY,
    PIECE,
    PROXIED_HEAD_BYTES,
    PodHttp,
    bounded_body,
    chunks_of,
    refuse_unasked,
    unreachable,
)
from trainmaster_operator.wire.names import FIELD_MANAGER
from trainmaster_operator.wire.values import mapping, mappings, shown

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
# What the kubelet answers, as if it were the log, of a container that it removed: of each it keeps the newest dead one.
_NO_LOG = re.compile(rb"unable to retrieve container logs for [a-z0-9.-]+://\w+\n?")
# Bytes of it, and of whatever else stands where a log was asked for.
_NO_LOG_BYTES = 1_024
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class KubernetesCluster:
    """Speaks to the real API server. Close it when done. Requests end after `timeout` seconds and aren't retried."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = 30.0,
        on_write: Callable[[str, str], None] | None = None,
        may_write: Callable[[], bool] | None = None,
    ) -> None:
        """`on_write` is called with the verb and kind of every write; `may_write` is asked before every request that
        could change something.
        """
        self._client = ApiClient(connection.configuration)
        self._client.user_agent = f"{FIELD_MANAGER}-operator"
        self._host = str(connection.configuration.host).rstrip("/")
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._pods: PodHttp | None = None
        # Of types that differ between API servers: the version asked for, and the one that is served.
        self._served: dict[str, str] = {}
        self._on_write = on_write or _ignore
        self._may_write = may_write or _always

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._pods is not None:
            await self._pods.close()
        await self._client.close()

    def served(self, resource: Resource) -> Resource:
        api_version = self._served.get(resource.api_version, resource.api_version)
        return replace(resource, version=api_version.rpartition("/")[2])

    async def discovers(self, resource: Resource) -> bool:
        version = resource.api_version
        if resource.group:
            groups = mappings((await self._json("GET", "/apis")).get("groups"))
            versions = (one for group in groups for one in mappings(group.get("versions")))
            if version not in {one.get("groupVersion") for one in versions}:
                return False
        try:
            document = await self._json("GET", f"/apis/{version}" if resource.group else f"/api/{version}")
        except NotFound:
            return False
        named = (one.get("name") for one in mappings(document.get("resources")))
        return document.get("groupVersion") == version and resource.plural in named

    async def get(self, resource: Resource, namespace: str, name: str) -> RawObject:
        return await self._json("GET", resource.path(namespace, name), kept=resource.kept)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[RawObject]]:
        query = {"limit": str(resource.page)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        accept = METADATA_LIST if metadata_only else "application/json"
        item = resource.kept and (metadata_of(resource.kept) if metadata_only else resource.kept)
        page_kept = item and listed(item)
        while True:
            page = await self._json("GET", resource.path(namespace), query=query, accept=accept, kept=page_kept)
            yield [item for item in page.get("items") or () if isinstance(item, dict)]
            next_page = mapping(page.get("metadata")).get("continue")
            if not next_page:
                return
            query["continue"] = str(next_page)

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> RawObject:
        query = {"fieldManager": FIELD_MANAGER}
        if resource.strict:
            query["fieldValidation"] = "Strict"
        if dry_run:
            query["dryRun"] = "All"
        answer = await self._json("POST", resource.path(namespace), query=query, body=body, kept=resource.kept)
        if not dry_run:
            self._on_write("create", resource.kind)
        return answer

    async def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        query = {"fieldManager": FIELD_MANAGER}
        answer = await self._json("PUT", resource.path(namespace, name), query=query, body=body, kept=resource.kept)
        self._on_write("update", resource.kind)
        return answer

    async def apply(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, force: bool
    ) -> RawObject:
        answer = await self._json(
            "PATCH",
            resource.path(namespace, name),
            query={"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"},
            body=body,
            content_type="application/apply-patch+yaml",
            kept=resource.kept,
        )
        self._on_write("apply", resource.kind)
        return answer

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: Literal["status"] | None = None,
    ) -> RawObject:
        answer = await self._json(
            "PATCH",
            resource.path(namespace, name, subresource),
            query={"fieldManager": FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
            kept=resource.kept,
        )
        self._on_write("patch", f"{resource.kind}/{subresource}" if subresource else resource.kind)
        return answer

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Literal["Background", "Foreground"] = "Background",
    ) -> None:
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._json("DELETE", resource.path(namespace, name), body=body)
        self._on_write("delete", resource.kind)

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str,
        tail_lines: int,
        limit_bytes: int,
        previous: bool = False,
        timestamps: bool = False,
    ) -> str:
        query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(limit_bytes)}
        if previous:
            query["previous"] = "true"
        if timestamps:
            query["timestamps"] = "true"
        path = PODS.path(namespace, pod, "log")
        raw = await self._bytes("GET", path, query=query, limit=max(limit_bytes, _NO_LOG_BYTES))
        if _NO_LOG.fullmatch(raw):
            raise Refused(f"GET {path}", raw.decode(), status=400)
        return raw.decode(errors="replace")

    @asynccontextmanager
    async def followed_log(
        self, namespace: str, pod: str, *, container: str, tail_lines: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        query = {"container": container, "tailLines": str(tail_lines), "follow": "true", "timestamps": "true"}
        path = PODS.path(namespace, pod, "log")
        response = await self._request("GET", f"{path}?{urlencode(query)}", headers={"Accept": "*/*"}, endless=True)
        try:
            await refuse_unasked(response, f"GET {path}", API_ERROR_BYTES)
            yield _log_chunks(response, f"GET {path}")
        finally:
            response.close()

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
        connect_timeout: float = 2.0,
    ) -> AsyncIterator[PodStream]:
        url = f"{PODS.path(namespace, f'{pod}:{port}', 'proxy')}{path}"
        config = self._client.configuration
        if self._pods is None:
            trust_env = bool((config.client_session_kwargs or {}).get("trust_env"))
            ssl = self._client.rest_client.ssl_context
            self._pods = PodHttp(ssl=ssl, trust_env=trust_env, most_of_head=PROXIED_HEAD_BYTES)
        async with self._pods.open(
            method,
            self._host + quote_path(url),
            f"{method} {url}",
            headers=await self._authenticated(method, url, headers, None),
            body=body,
            connect_seconds=connect_timeout,
            proxy=config.proxy,
            proxy_headers=config.proxy_headers,
            server_hostname=config.tls_server_name,
        ) as stream:
            yield stream

    async def _json(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        kept: Fields | None = None,
    ) -> RawObject:
        asked, versions = self._versions(path)
        for version in versions:
            here = path.replace(asked, version, 1)
            sent = {**body, "apiVersion": version} if body and asked and body.get("apiVersion") == asked else body
            try:
                document = await self._decoded(
                    method, here, query=query, body=sent, content_type=content_type, accept=accept, kept=kept
                )
            except NotFound as error:
                if not is_unserved(error):
                    self._served[asked] = version
                    raise
                self._served.pop(asked, None)
                if version == versions[-1]:
                    raise
                continue
            break
        if asked:
            self._served[asked] = version
        if not isinstance(document, dict):
            raise Unusable(f"{method} {path}", f"{shown(document)} in place of an object")
        return document

    def _versions(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Returns the group and version in a path, where it is one of several that may be served, and what to try."""
        for asked, later in LATER_VERSIONS.items():
            if path.startswith(f"/apis/{asked}/"):
                known = self._served.get(asked)
                return asked, (known,) if known is not None else (asked, *later)
        return "", ("",)

    async def _decoded(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        accept: str,
        kept: Fields | None,
    ) -> Any:
        """Returns a successful answer's document."""
        async with self._answer(method, path, query, body, content_type, accept) as response:
            try:
                return await decoded(response.content, kept)
            except ValueError as error:
                raise Unusable(f"{method} {path}", f"an answer that isn't JSON ({error})") from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unreachable(method, path, error) from error

    async def _bytes(self, method: Method, path: str, *, query: Mapping[str, str], limit: int) -> bytes:
        """Returns the first bytes of a successful answer that a pod wrote."""
        async with self._answer(method, path, query, accept="*/*") as response:
            return await bounded_body(response, f"{method} {path}", limit)

    @asynccontextmanager
    async def _answer(
        self,
        method: Method,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields a successful answer."""
        url = f"{path}?{urlencode(query)}" if query else path
        response = await self._request(
            method, url, headers={"Content-Type": content_type, "Accept": accept}, json_body=body
        )
        async with response:
            await refuse_unasked(response, f"{method} {path}", API_ERROR_BYTES)
            yield response

    async def _request(
        self,
        method: Method,
        url: str,
        *,
        headers: Mapping[str, str],
        json_body: Mapping[str, Any] | None = None,
        endless: bool = False,
    ) -> aiohttp.ClientResponse:
        """Returns an open answer; an endless one has no time to be over, and little of it is read ahead."""
        config = self._client.configuration
        all_headers = await self._authenticated(method, url, {**headers, **IDENTITY}, json_body)
        if self._session is None:
            # The client's own factory: TLS, client certificates and the pool as its configuration says.
            self._session = self._client.rest_client._create_pool_manager()
        try:
            return await self._session.request(
                method,
                self._host + quote_path(url),
                headers=all_headers,
                data=None if json_body is None else encode(json_body),
                timeout=aiohttp.ClientTimeout(total=None if endless else self._timeout, sock_connect=self._timeout),
                read_bufsize=PIECE if endless else None,
                allow_redirects=False,
                auto_decompress=False,
                proxy=config.proxy,
                proxy_headers=config.proxy_headers,
                server_hostname=config.tls_server_name,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(method, url, error) from error

    async def _authenticated(
        self, method: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, str]:
        if method != "GET" and not self._may_write():
            raise Deposed(f"{method} {url.partition('?')[0]}", "the lease is over: another operator may lead")
        all_headers = {**self._client.default_headers, **headers}
        await self._client.update_params_for_auth(all_headers, None, ["BearerToken"], url, method, body)
        return all_headers


async def _log_chunks(response: aiohttp.ClientResponse, request: str) -> AsyncIterator[bytes]:
    async for chunk in chunks_of(response, request):
        if _NO_LOG.fullmatch(chunk):
            raise Refused(request, chunk.decode(), status=400)
        yield chunk


def quote_path(url: str) -> str:
    """Quotes what a name could smuggle into a path; names are DNS labels, so this changes nothing that is valid."""
    path, mark, query = url.partition("?")
    return quote(path, safe="/:%") + mark + query


def _unreachable(method: str, url: str, error: BaseException) -> Unreachable:
    return unreachable(f"{method} {url.partition('?')[0]}", error)


def _ignore(verb: str, kind: str) -> None:
    del verb, kind


def _always() -> bool:
    return True
