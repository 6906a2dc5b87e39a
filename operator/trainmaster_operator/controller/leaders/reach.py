"""How the operator reaches an agent's port: the pod's address, or the API server's pod proxy.

Inside the cluster the pod's address is nearest; outside of it only the proxy is there (measured equally fast).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from trainmaster_operator.controller.apiserver.cluster import Cluster, PodStream
from trainmaster_operator.controller.apiserver.errors import Unreachable
from trainmaster_operator.controller.apiserver.pod_http import PodHttp
from trainmaster_operator.wire.names import TOKEN_HEADER

# Seconds for a TCP connection to an agent in the same network.
CONNECT_SECONDS = 1.0


@dataclass(frozen=True)
class AgentAddress:
    """Holds what is needed to reach a worker's pod."""

    namespace: str
    pod: str
    uid: str
    worker: int
    ip: str | None


class Reach(Protocol):
    """Opens requests to agents. Raises ClusterError."""

    def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AbstractAsyncContextManager[PodStream]: ...

    async def close(self) -> None: ...


class ProxyReach:
    """Reaches agents through the API server."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self._cluster = cluster
        self._port = port

    def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AbstractAsyncContextManager[PodStream]:
        headers = {TOKEN_HEADER: token}
        return self._cluster.pod_proxy(method, agent.namespace, agent.pod, self._port, path, headers=headers, body=body)

    async def close(self) -> None:
        return None


class DirectReach:
    """Reaches agents at their pods' addresses."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._http = PodHttp()

    @asynccontextmanager
    async def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AsyncIterator[PodStream]:
        request = f"{method} {agent.pod}:{self._port}{path}"
        if agent.ip is None:
            raise Unreachable(request, "the pod has no address yet")
        host = f"[{agent.ip}]" if ":" in agent.ip else agent.ip
        url = f"http://{host}:{self._port}{path}"
        async with self._http.open(
            method, url, request, headers={TOKEN_HEADER: token}, body=body, connect_seconds=CONNECT_SECONDS
        ) as stream:
            yield stream

    async def close(self) -> None:
        await self._http.close()
