"""`python -m bench.clusters.hostile_agents PORT` plays agents that answer as no real agent does.

It reads commands. `listen ADDRESS` adds an agent. `be ATTACK [ATTACK ...]` closes all connections and makes all agents
use this attack (several attacks are divided among the agents). They accept the operator's requests, and answer with
bytes that it didn't ask for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import zlib
from collections.abc import AsyncIterator, Callable

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = {"type": "hello", "leader": 0, "uid": "hostile", "attempt": 1, "workers": []}
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
BLOCK = 65_536


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def bomb() -> bytes:
    """Returns 1 GiB of newlines, compressed into 1 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b"\n" * 2**20
    return b"".join([*(packer.compress(piece) for _ in range(1_024)), packer.flush()])


async def well() -> AsyncIterator[bytes]:
    """Answers as a real agent does."""
    yield CHUNKED + chunk(line(HELLO))
    while True:
        await asyncio.sleep(5)
        yield chunk(line({"type": "ping"}))


async def gzip() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB)
    yield BOMB


async def blank_lines() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO))
    while True:
        yield chunk(b"\n" * BLOCK)


async def foreign_ranks() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO))
    for first in itertools.count(0, 1_000):
        ranks = {str(rank % 10**8): {"step": 1, "message": "x" * 20} for rank in range(first, first + 1_000)}
        yield chunk(line({"type": "progress", "attempt": 1, "worker": 0, "ranks": ranks}))


async def hello_and_close() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO)) + b"0\r\n\r\n"


async def changes() -> AsyncIterator[bytes]:
    """Sends reports each of which changes a value, and in which a worker appears and disappears."""
    yield CHUNKED + chunk(line(HELLO))
    for number in itertools.count(1):
        state = "Running" if number % 2 else "Starting"
        report = {"attempt": 1, "worker": 0, "uid": "hostile", "state": state, "at": number}
        worker = {"type": "worker", "worker": 0, "uid": "hostile", "seen": 1, "connected": number % 2 == 0}
        yield chunk(line({"type": "report", "seq": number, "report": report}) + line(worker))


async def nested() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO))
    while True:
        yield chunk(b'{"type":' + b"[" * 60_000 + b"\n")


async def numbers() -> AsyncIterator[bytes]:
    """Sends values that would end a reader with an unexpected exception."""
    yield CHUNKED + chunk(line(HELLO))
    progress = {"type": "progress", "attempt": 1, "worker": 0, "ranks": {"0": {"loss": 10**400}}}
    yield chunk(line(progress))


async def redirect() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /v1/stream\r\nContent-Length: 0\r\n\r\n"


async def error_body() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield chunk(b"x" * BLOCK)


async def slow() -> AsyncIterator[bytes]:
    """Sends one byte a second, and never completes an answer."""
    yield CHUNKED + chunk(line(HELLO))
    while True:
        await asyncio.sleep(1)
        yield chunk(b" ")


async def empty_heads() -> AsyncIterator[bytes]:
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2_000


async def tiny_chunks() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO))
    ping = b"".join(chunk(bytes([byte])) for byte in line({"type": "ping"}))
    while True:
        yield ping * 500


async def chunk_extension() -> AsyncIterator[bytes]:
    yield CHUNKED + chunk(line(HELLO)) + b"1;"
    while True:
        yield b"x" * BLOCK


ATTACKS: dict[str, Callable[[], AsyncIterator[bytes]]] = {
    attack.__name__: attack
    for attack in (
        gzip,
        blank_lines,
        foreign_ranks,
        hello_and_close,
        changes,
        nested,
        numbers,
        redirect,
        error_body,
        slow,
        empty_heads,
        tiny_chunks,
        chunk_extension,
    )
}
BEHAVIOURS = {"well": well, **ATTACKS}
BOMB = b""


class Agents:
    """Agents contains all agents, which listen on one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._addresses: list[str] = []
        self._behaviours = ["well"]
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self, address: str) -> None:
        self._addresses.append(address)
        await asyncio.start_server(self._serve, address, self._port)

    def be(self, behaviours: list[str]) -> None:
        self._behaviours = behaviours
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("sockname")[0]
        behaviour = self._behaviours[self._addresses.index(address) % len(self._behaviours)]
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST") and behaviour == "slow":
                    await asyncio.sleep(3600)
                if b"/v1/stream" not in head.split(b"\r\n", 1)[0]:
                    writer.write(NO_CONTENT)
                    continue
                async for piece in BEHAVIOURS[behaviour]():
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def main(port: int) -> None:
    """Executes commands until the input ends."""
    agents = Agents(port)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while words := (await reader.readline()).decode().split():
        if words[0] == "listen":
            await agents.listen(words[1])
        else:
            agents.be(words[1:])
        print("done", flush=True)


if __name__ == "__main__":
    # In reality the attackers run on another machine.
    os.nice(15)
    BOMB = bomb()
    asyncio.run(main(int(sys.argv[1])))
