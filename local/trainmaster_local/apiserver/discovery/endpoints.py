"""These endpoints publish the server's health, version, discovery and OpenAPI."""

from __future__ import annotations

from aiohttp import web

from trainmaster_local.apiserver.discovery import documents
from trainmaster_local.apiserver.discovery.openapi import OpenApi
from trainmaster_local.apiserver.http import codec
from trainmaster_local.apiserver.http.answers import json_response
from trainmaster_local.apiserver.resources import Registry

_HEALTH = ("healthz", "livez", "readyz")


class Descriptions:
    """This class answers GET on every path that isn't a resource's."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._openapi = OpenApi(registry)

    def answer(self, path: str, accept: str, address: str) -> web.Response:
        parts = path.strip("/").split("/")
        if parts[0] in _HEALTH:
            return web.Response(text="ok", content_type="text/plain", charset="utf-8")
        if path == "/version":
            return json_response(documents.VERSION)
        if parts[0] in ("api", "apis"):
            return self._discover(parts, accept, address)
        if path == "/openapi/v2":
            return _openapi_v2(accept)
        if parts[:2] == ["openapi", "v3"]:
            return self._document(parts[2:])
        return page_not_found()

    def _discover(self, parts: list[str], accept: str, address: str) -> web.Response:
        registry = self._registry
        groups = documents.groups_of(registry)
        if len(parts) == 1:
            if codec.negotiate(accept, ("APIGroupDiscoveryList",)).as_:
                answer = documents.aggregated(registry, legacy=parts[0] == "api")
                content = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                return json_response(answer, content_type=content, headers={"Vary": "Accept"})
            old = documents.api_versions(address) if parts[0] == "api" else documents.api_group_list(registry)
            return json_response(old)
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2] if len(parts) > 2 else "")
        if group not in groups or (version and version not in groups[group]):
            return page_not_found()
        if not version:
            kind = {"kind": "APIGroup", "apiVersion": "v1"}
            return json_response({**kind, **documents.api_group(group, groups[group])})
        return json_response(documents.resource_list(group, version, groups[group][version]))

    def _document(self, parts: list[str]) -> web.Response:
        if not parts or not parts[0]:
            return json_response(self._openapi.index())
        group, version = ("", parts[1]) if parts[0] == "api" and len(parts) > 1 else ("", "")
        if parts[0] == "apis" and len(parts) > 2:
            group, version = parts[1], parts[2]
        document = self._openapi.document(group, version)
        return page_not_found() if document is None else json_response(document)


def _openapi_v2(accept: str) -> web.Response:
    """Returns a document without definitions, because v3 has all of them.

    kubectl reads v2 only for definitions that v3 lacks. It reads v2 as protobuf (gnostic's `openapi.v2.Document`: 1
    swagger, 2 info of 1 title and 2 version).
    """
    title, version = "Kubernetes", "v1.36.2"
    if "protobuf" not in accept:
        document = {"swagger": "2.0", "info": {"title": title, "version": version}, "paths": {}, "definitions": {}}
        return json_response(document)
    info = _bytes_field(1, title.encode()) + _bytes_field(2, version.encode())
    body = _bytes_field(1, b"2.0") + _bytes_field(2, info)
    return json_response(body, content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")


def _bytes_field(number: int, value: bytes) -> bytes:
    """Returns a length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def page_not_found() -> web.Response:
    return web.Response(status=404, text="404 page not found\n", content_type="text/plain", charset="utf-8")
