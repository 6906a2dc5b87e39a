"""A server answers with any bytes that a test gives it, as a pod with anybody's code can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["HostileServer", asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass
class HostileServer:
    """Plays `answer` to each request; `heads` are the requests, `sent` the number of bytes that the client took."""

    answer: Answer
    address: str
    port: int = 0
    heads: list[str] = field(default_factory=list)
    sent: int = 0
    # Connections that ended.
    closed: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send as much as the client reads."""
        writer.write(data)
        await writer.drain()
        self.sent += len(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await self.answer(self, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def hostile(answer: Answer, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HostileServer]:
    """Serves on the given port, or else on a free one."""
    made = HostileServer(answer, address)
    server = await asyncio.start_server(made._serve, address, port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


def answering(*pieces: bytes) -> Answer:
    """Send these bytes, and leave the connection open."""

    async def answer(server: HostileServer, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await server.send(writer, piece)

    return answer


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    """Send the head, and then the same piece forever, as fast as the client reads."""

    async def answer(server: HostileServer, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, head)
        while True:
            await server.send(writer, piece)
            await asyncio.sleep(pause)

    return answer
