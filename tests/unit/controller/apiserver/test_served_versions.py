"""`apiserver.client` asks in which version an API server serves a type, and remembers the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import GANGS, PODS
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import NotFound, from_response

POD_GROUPS = GANGS["kubernetes"]
STATUS = {"kind": "Status", "reason": "NotFound", "message": 'podgroups.scheduling.k8s.io "bert" not found'}


class Server(KubernetesCluster):
    """Answers as an API server that serves one version of PodGroups, or none."""

    def __init__(self) -> None:
        super().__init__(ApiConnection(Configuration(), in_cluster=False))
        self.version = "v1beta1"
        self.asked: list[tuple[str, str, Any]] = []

    async def _document(self, request: Any, kept: Any) -> Any:
        method, path = request.method, request.path
        self.asked.append((method, path, (request.body or {}).get("apiVersion")))
        if path.startswith("/apis/") and not path.startswith(f"/apis/scheduling.k8s.io/{self.version}/"):
            raise from_response(f"{method} {path}", 404, {}, b"404 page not found\n")
        if method == "GET" and path.endswith("/absent"):
            raise from_response(f"{method} {path}", 404, {}, json.dumps(STATUS).encode())
        return {}


async def apply(server: Server) -> None:
    body = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup"}
    await server.apply(POD_GROUPS, "team", "bert", body)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.close()


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
async def test_what_is_served_is_found_and_then_asked_for_at_once(server: Server, version: str) -> None:
    server.version = version
    await apply(server)
    assert server.served(POD_GROUPS).version == version
    server.asked.clear()
    await apply(server)
    path = f"/apis/scheduling.k8s.io/{version}/namespaces/team/podgroups/bert"
    assert server.asked == [("PATCH", path, f"scheduling.k8s.io/{version}")]


async def test_an_object_that_isnt_there_is_no_version_that_isnt_served(server: Server) -> None:
    with pytest.raises(NotFound):
        await server.get(POD_GROUPS, "team", "absent")
    assert server.served(POD_GROUPS).version == "v1beta1"


async def test_where_none_is_served_that_is_an_error_and_asked_anew_later(server: Server) -> None:
    server.version = "v2"
    with pytest.raises(NotFound):
        await apply(server)
    server.version = "v1alpha3"
    await apply(server)
    await server.get(PODS, "team", "bert")
    assert server.asked[-1][1] == "/api/v1/namespaces/team/pods/bert"
