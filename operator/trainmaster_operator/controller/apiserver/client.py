"""`KubernetesCluster` implements `Cluster` over `kubernetes.aio`: its configuration, credentials and connection pool.

The client reads and writes raw JSON. The generated typed API isn't used, because it decodes every object into classes
(10 times slower than `json.loads`) and drops unknown fields, which server-side apply must not lose.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from trainmaster_operator.api.json_codec import encode
from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.controller.apiserver.cluster import LATER_VERSIONS, PODS, RawObject, Resource
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import Deposed, NotFound, Refused, Unusable, is_unserved
from trainmaster_operator.controller.apiserver.kept import Fields, decoded, listed, metadata_of
from trainmaster_operator.controller.apiserver.pod_http import (
    API_ERROR_BYTES,
    IDENTITY,
    PIECE,
    PROXIED_HEAD_BYTES,
    PodHttp,
    PodStream,
    bounded_body,
    refuse_unasked,
    unreachable,
)
from trainmaster_operator.wire.names import FIELD_MANAGER
from trainmaster_operator.wire.values import mapping, mappings, shown

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
# The kubelet keeps only the newest ended container. It sends this text as the log of a container that it has removed.
_NO_LOG = re.compile(rb"unable to retrieve container logs for [a-z0-9.-]+://\w+\n?")
# Limit on the bytes read to find that text.
_NO_LOG_BYTES = 1_024
# Timeout in seconds for connecting to the API server for a request to a pod.
PROXY_CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class _Request:
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    accept: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def url(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def in_version(self, asked: str, served: str) -> _Request:
        """Returns the request for another version of the type; both arguments are a group with a version."""
        body = self.body
        if body is not None and body.get("apiVersion") == asked:
            body = {**body, "apiVersion": served}
        return replace(self, path=self.path.replace(asked, served, 1), body=body)


class KubernetesCluster:
    """Sends requests to the real API server. A request fails after `timeout` seconds, and isn't retried."""

    def __init__(
        self,
        connection: ApiConnection,
        *,
        timeout: float = 30.0,
        on_write: Callable[[str, str], None] = lambda verb, kind: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Creates a client. `on_write` is called with the verb and kind of every write.

        `may_write` is called before every request that could change something; if it returns False, nothing is sent.
        """
        self._client = ApiClient(connection.configuration)
        self._client.user_agent = f"{FIELD_MANAGER}-operator"
        self._host = str(connection.configuration.host).rstrip("/")
        self._timeout, self._on_write, self._may_write = timeout, on_write, may_write
        self._session: aiohttp.ClientSession | None = None
        trust_env = bool((connection.configuration.client_session_kwargs or {}).get("trust_env"))
        # How aiohttp reaches the API server.
        self._way: Mapping[str, Any] = {
            "proxy": connection.configuration.proxy,
            "proxy_headers": connection.configuration.proxy_headers,
            "server_hostname": connection.configuration.tls_server_name,
        }
        ssl = self._client.rest_client.ssl_context
        self._pods = PodHttp(ssl=ssl, trust_env=trust_env, most_of_head=PROXIED_HEAD_BYTES)
        # For types whose version depends on the API server: the served version, by the requested version.
        self._served: dict[str, str] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._pods.close()
        await self._client.close()

    def served(self, resource: Resource) -> Resource:
        api_version = self._served.get(resource.api_version, resource.api_version)
        return replace(resource, version=api_version.rpartition("/")[2])

    async def discovers(self, resource: Resource) -> bool:
        version = resource.api_version
        if resource.group:
            groups = mappings((await self._json(_Request("GET", "/apis"))).get("groups"))
            versions = (one for group in groups for one in mappings(group.get("versions")))
            if version not in {one.get("groupVersion") for one in versions}:
                return False
        try:
            document = await self._json(_Request("GET", f"/apis/{version}" if resource.group else f"/api/{version}"))
        except NotFound:
            return False
        named = (one.get("name") for one in mappings(document.get("resources")))
        return document.get("groupVersion") == version and resource.plural in named

    async def get(self, resource: Resource, namespace: str, name: str) -> RawObject:
        return await self._json(_Request("GET", resource.path(namespace, name)), resource.kept)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[RawObject]]:
        wanted = {"limit": str(resource.page), "labelSelector": label_selector, "fieldSelector": field_selector}
        query = {name: value for name, value in wanted.items() if value}
        accept = METADATA_LIST if metadata_only else "application/json"
        item = resource.kept and (metadata_of(resource.kept) if metadata_only else resource.kept)
        page_kept = item and listed(item)
        while True:
            page = await self._json(_Request("GET", resource.path(namespace), query, accept=accept), page_kept)
            yield [item for item in page.get("items") or () if isinstance(item, dict)]
            next_page = mapping(page.get("metadata")).get("continue")
            if not next_page:
                return
            query["continue"] = str(next_page)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> RawObject:
        query = {"fieldManager": FIELD_MANAGER, **({"fieldValidation": "Strict"} if resource.strict else {})}
        return await self._write("create", resource, _Request("POST", resource.path(namespace), query, body))

    async def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        request = _Request("PUT", resource.path(namespace, name), {"fieldManager": FIELD_MANAGER}, body)
        return await self._write("update", resource, request)

    async def apply(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path, kind = resource.path(namespace, name), "application/apply-patch+yaml"
        return await self._write("apply", resource, _Request("PATCH", path, query, body, kind))

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, status: bool = False
    ) -> RawObject:
        path = resource.path(namespace, name, "status" if status else None)
        request = _Request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, "application/merge-patch+json")
        return await self._write("patch", resource, request, "/status" if status else "")

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", force: bool = False
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": "Background",
            **({"gracePeriodSeconds": 0} if force else {}),
        }
        await self._json(_Request("DELETE", resource.path(namespace, name), body=body))
        self._on_write("delete", resource.kind)

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        tail_lines: int,
        limit_bytes: int,
        previous: bool = False,
        container: str = WORKER_CONTAINER,
    ) -> str:
        query = {"container": container, "limitBytes": str(limit_bytes), **({"previous": "true"} if previous else {})}
        request = _log_request(namespace, pod, tail_lines, query)
        async with self._answer(request) as response:
            raw = await bounded_body(response, str(request), max(limit_bytes, _NO_LOG_BYTES))
        if _NO_LOG.fullmatch(raw):
            raise Refused(str(request), raw.decode(), status=400)
        return raw.decode(errors="replace")

    @asynccontextmanager
    async def followed_log(self, namespace: str, pod: str, *, tail_lines: int) -> AsyncIterator[AsyncIterator[bytes]]:
        request = _log_request(namespace, pod, tail_lines, {"follow": "true"})
        async with self._answer(request, endless=True) as response:
            try:
                yield _log_chunks(response, str(request))
            finally:
                # The body isn't read.
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
    ) -> AsyncIterator[PodStream]:
        url = f"{PODS.path(namespace, f'{pod}:{port}', 'proxy')}{path}"
        async with self._pods.open(
            method,
            self._host + quote_path(url),
            f"{method} {url}",
            headers=await self._authenticated(method, url, headers, None),
            body=body,
            connect_seconds=PROXY_CONNECT_SECONDS,
            **self._way,
        ) as stream:
            yield stream

    async def _write(self, verb: str, resource: Resource, request: _Request, part: str = "") -> RawObject:
        answer = await self._json(request, resource.kept)
        self._on_write(verb, resource.kind + part)
        return answer

    async def _json(self, request: _Request, kept: Fields | None = None) -> RawObject:
        """Sends a request, in the served version of the object's type, and returns the answer's object."""
        asked, versions = self._versions(request.path)
        for version in versions:
            try:
                document = await self._document(request.in_version(asked, version) if asked else request, kept)
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
            raise Unusable(str(request), f"{shown(document)} in place of an object")
        return document

    def _versions(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Returns the group and version in a path, and the versions to try if others may be served."""
        for asked, later in LATER_VERSIONS.items():
            if path.startswith(f"/apis/{asked}/"):
                known = self._served.get(asked)
                return asked, (known,) if known is not None else (asked, *later)
        return "", ("",)

    async def _document(self, request: _Request, kept: Fields | None) -> Any:
        async with self._answer(request) as response:
            try:
                return await decoded(response.content, kept)
            except ValueError as error:
                raise Unusable(str(request), f"an answer that isn't JSON ({error})") from error
            except (aiohttp.ClientError, OSError) as error:
                raise unreachable(str(request), error) from error

    @asynccontextmanager
    async def _answer(self, request: _Request, *, endless: bool = False) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields a successful answer. An endless answer has no total timeout, and little of it is read ahead."""
        url = request.url
        headers = {"Content-Type": request.content_type, "Accept": request.accept, **IDENTITY}
        all_headers = await self._authenticated(request.method, url, headers, request.body)
        if self._session is None:
            # The client's own factory sets TLS, client certificates and the pool as configured.
            self._session = self._client.rest_client._create_pool_manager()
        try:
            response = await self._session.request(
                request.method,
                self._host + quote_path(url),
                headers=all_headers,
                data=None if request.body is None else encode(request.body),
                timeout=aiohttp.ClientTimeout(total=None if endless else self._timeout, sock_connect=self._timeout),
                read_bufsize=PIECE if endless else None,
                allow_redirects=False,
                auto_decompress=False,
                **self._way,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(str(request), error) from error
        async with response:
            await refuse_unasked(response, str(request), API_ERROR_BYTES)
            yield response

    async def _authenticated(
        self, method: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, str]:
        if method != "GET" and not self._may_write():
            raise Deposed(f"{method} {url.partition('?')[0]}", "the lease is over: another operator may lead")
        all_headers = {**self._client.default_headers, **headers}
        await self._client.update_params_for_auth(all_headers, None, ["BearerToken"], url, method, body)
        return all_headers


def _log_request(namespace: str, pod: str, tail_lines: int, query: Mapping[str, str]) -> _Request:
    query = {"container": WORKER_CONTAINER, "tailLines": str(tail_lines), "timestamps": "true", **query}
    return _Request("GET", PODS.path(namespace, pod, "log"), query, accept="*/*")


async def _log_chunks(response: aiohttp.ClientResponse, request: str) -> AsyncIterator[bytes]:
    async for chunk in PodStream(response, request).chunks():
        if _NO_LOG.fullmatch(chunk):
            raise Refused(request, chunk.decode(), status=400)
        yield chunk


def quote_path(url: str) -> str:
    """Quotes characters with which a name could change a path. Valid names, which are DNS labels, stay the same."""
    path, mark, query = url.partition("?")
    return quote(path, safe="/:%") + mark + query
