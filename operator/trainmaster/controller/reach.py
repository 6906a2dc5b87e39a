"""How the operator reaches an agent's port: the pod's address, or the API server's pod proxy.

Inside the cluster the pod's address is nearest; outside of it only the proxy is there (measured equally fast).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import aiohttp

from trainmaster.api.protocol import TOKEN_HEADER
from trainmaster.controller.cluster import Cluster, PodStream
from trainmaster.controller.errors import Unreachable, from_response
from trainmaster.controller.kubernetes_cluster import ResponseStream, unreachable

# Seconds for a TCP connection to an agent in the same network, and for silence between two pings (one in 5 s).
CONNECT_SECONDS = 1.0
SILENCE_SECONDS = 15.0


@dataclass(frozen=True)
class AgentAddress:
    """A worker's pod, as far as reaching it goes."""

    namespace: str
    pod: str
    uid: str
    worker: int
    ip: str | None


class Reach(Protocol):
    """A way to agents. Raises ClusterError."""

    def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AbstractAsyncContextManager[PodStream]: ...

    async def close(self) -> None: ...


class ProxyReach:
    """Through the API server."""

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
    """To the pod's address."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(
        self, method: Literal["GET", "POST"], agent: AgentAddress, path: str, token: str, body: bytes | None = None
    ) -> AsyncIterator[PodStream]:
        request = f"{method} {agent.pod}:{self._port}{path}"
        if agent.ip is None:
            raise Unreachable(request, "the pod has no address yet")
        if self._session is None:
            # One open stream for each running job: no limit on connections.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        host = f"[{agent.ip}]" if ":" in agent.ip else agent.ip
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        headers = {TOKEN_HEADER: token, "Content-Type": "application/json"}
        try:
            response = await self._session.request(
                method, f"http://{host}:{self._port}{path}", headers=headers, data=body, timeout=timeout
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(request, error) from error
        try:
            if response.status >= 300:
                raise from_response(request, response.status, response.headers, await response.content.read(4_096))
            yield ResponseStream(response, request)
        finally:
            if response.status == 204:
                response.release()
            else:
                # A stream has no end of its own.
                response.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
