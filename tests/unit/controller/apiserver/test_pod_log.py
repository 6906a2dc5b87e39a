"""`apiserver.client` reads a container's log, and recognises the messages that a kubelet sends in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import Refused

# A kubelet 1.36.2 gave this whole answer, with status 200, for a container that it had removed.
GONE = b"unable to retrieve container logs for containerd://b3bc6541703533433266e16a987dbf15c0c8107ceb3c7495048dc98afa4cf5b2"


class Server(KubernetesCluster):
    """Answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(ApiConnection(Configuration(), in_cluster=False))
        self.sent = answer

    @asynccontextmanager
    async def _answer(self, request: Any, **given: Any) -> AsyncIterator[Any]:
        yield self

    @property
    def content(self) -> Server:
        return self

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        yield self.sent


async def read(answer: bytes) -> str:
    server = Server(answer)
    try:
        return await server.pod_log("team", "p", tail_lines=9, limit_bytes=99, previous=True)
    finally:
        await server.close()


async def test_a_container_that_was_removed_has_no_log() -> None:
    with pytest.raises(Refused, match="unable to retrieve container logs"):
        await read(GONE)


async def test_a_program_may_say_the_same() -> None:
    assert await read(b"step 1\n" + GONE + b"\n") == f"step 1\n{GONE.decode()}\n"
