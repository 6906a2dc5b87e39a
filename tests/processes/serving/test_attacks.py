"""Strangers send every server of ours what no client sends; meanwhile another client is answered promptly.

None of them has a token. The time limits are generous, because a server that failed here blocked its loop for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.processes.agent.agents import Job
from tests.processes.serving.served import HOST, SERVERS

MIB = 1_048_576
PROMPT_SECONDS = 1.5
MOST_MEMORY = 96 * MIB
PROBE = b"GET /healthz HTTP/1.1\r\nHost: kubelet\r\nConnection: close\r\n\r\n"


@dataclass
class Served:
    """Runs one of our servers in a separate process."""

    name: str
    host: str
    port: int
    pid: int

    def peak(self) -> int:
        """Returns the most bytes that were resident at once."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1_024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.fixture(scope="module", params=[*SERVERS, "agent"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    with agent(folder) if request.param == "agent" else one_of_ours(request.param, folder) as found:
        yield found


@contextlib.contextmanager
def one_of_ours(name: str, folder: Path) -> Iterator[Served]:
    """Starts an aiohttp server."""
    command = [sys.executable, "-m", "tests.processes.serving.served", name, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield Served(name, HOST, int(process.stdout.readline()), process.pid)
            assert process.poll() is None
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[Served]:
    """Starts an agent, which has its own server."""
    job = Job(folder, "127.127.9")
    try:
        started = job.agent(0).start("sleep", "300")
        started.until_healthy()
        assert started.process is not None
        yield Served("agent", started.address, job.agent_port, started.process.pid)
        assert started.process.poll() is None
    finally:
        job.end()


@dataclass
class Stranger:
    """Holds one connection of the attack."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0

    async def send(self, data: bytes) -> bool:
        """Sends data, and returns whether the server still takes it."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return False
        self.sent += len(data)
        return True

    async def status(self) -> int | None:
        """Returns the answer's status; None if the connection was closed instead."""
        with contextlib.suppress(OSError):
            line = await self.reader.readline()
            return int(line.split()[1]) if line.startswith(b"HTTP/1.") else None
        return None

    async def is_closed(self) -> bool:
        """Reads to the end, and returns True."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65_536):
                pass
        return True


@dataclass
class Attack:
    """Opens connections, while another client's probes continue until the attack is over."""

    served: Served
    stack: contextlib.AsyncExitStack
    probes: list[float] = field(default_factory=list)

    async def stranger(self) -> Stranger:
        """Connects."""
        reader, writer = await asyncio.open_connection(self.served.host, self.served.port)
        self.stack.callback(writer.transport.abort)
        return Stranger(reader, writer)

    async def strangers(self, number: int, data: bytes = b"") -> list[Stranger]:
        """Connects `number` times, and sends the same on each."""
        found = [await self.stranger() for _ in range(number)]
        await asyncio.gather(*(stranger.send(data) for stranger in found))
        return found

    async def probe(self) -> None:
        """Asks for /healthz on a new connection."""
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection(self.served.host, self.served.port)
        writer.write(PROBE)
        assert (await reader.read(65_536)).startswith(b"HTTP/1.1 200 OK"), "a probe wasn't answered"
        writer.close()
        self.probes.append(time.monotonic() - begun)

    async def keep_probing(self) -> None:
        """Probes repeatedly."""
        while True:
            await self.probe()
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def attack(served: Served) -> AsyncIterator[Attack]:
    """Probes beside the attack; checks afterwards that all probes were answered promptly and that memory stayed
    bounded.
    """
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        found = Attack(served, stack)
        await found.probe()
        before = served.peak()
        probing = asyncio.create_task(found.keep_probing())
        try:
            yield found
        finally:
            await found.probe()
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            assert max(found.probes) < PROMPT_SECONDS
            assert served.peak() - before < MOST_MEMORY


def bomb(unpacked: int, *, gzip: bool) -> bytes:
    """Returns a compressed body of zeros, a thousandth of its unpacked size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\x03" if gzip else b"\x78\xda"
    return head + block * (unpacked // MIB)


def head(request: str, *headers: str) -> bytes:
    """Returns a request's head."""
    return "\r\n".join((f"{request} HTTP/1.1", "Host: x", *headers, "", "")).encode()


BODIES = {
    "gzip": bomb(1_024 * MIB, gzip=True),
    "deflate": bomb(1_024 * MIB, gzip=False),
    "br": bytes(MIB),
    "zstd": bytes(MIB),
}


# There is no answer if the connection was closed; an agent accepts no body from a stranger at all.
REFUSED = (None, 401, 404, 405, 411, 413, 415)


@pytest.mark.parametrize("encoding", BODIES)
async def test_a_compressed_body_is_refused_without_unpacking(served: Served, encoding: str) -> None:
    body = BODIES[encoding]
    declared = (f"Content-Encoding: {encoding}", f"Content-Length: {len(body)}")
    async with attack(served) as attacking:
        for request in ("POST /healthz", "GET /healthz", "PUT /nowhere", "POST /v1/records"):
            strangers = await attacking.strangers(5)
            sending = [asyncio.create_task(each.send(head(request, *declared) + body)) for each in strangers]
            for stranger in strangers:
                assert await stranger.status() in REFUSED
                assert await stranger.is_closed()
            await asyncio.gather(*sending)


async def test_a_compressed_body_in_chunks_is_refused(served: Served) -> None:
    body = BODIES["gzip"]
    sent = head("POST /healthz", "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    async with attack(served) as attacking:
        stranger = await attacking.stranger()
        sending = asyncio.create_task(stranger.send(sent + f"{len(body):x}\r\n".encode() + body))
        assert await stranger.status() in REFUSED
        assert await stranger.is_closed()
        await sending


@pytest.mark.parametrize("declared", ["Content-Length: 1073741824", "Transfer-Encoding: chunked"])
async def test_a_huge_body_is_not_drained(served: Served, declared: str) -> None:
    chunk = bytes(MIB) if "Length" in declared else f"{MIB:x}\r\n".encode() + bytes(MIB) + b"\r\n"
    async with attack(served) as attacking:
        for request in ("POST /healthz", "GET /healthz", "DELETE /nowhere", "POST /v1/records"):
            stranger = await attacking.stranger()
            assert await stranger.send(head(request, declared))
            while await stranger.send(chunk):
                assert stranger.sent < 64 * MIB
            assert await stranger.is_closed()


async def test_requests_that_never_come_give_way(served: Served) -> None:
    async with attack(served) as attacking:
        strangers = await attacking.strangers(400, b"GET /heal")
        assert await strangers[0].is_closed()


async def test_bodies_that_never_come_give_way(served: Served) -> None:
    sent = head("POST /v1/records", "Content-Length: 100") + b"{"
    async with attack(served) as attacking:
        strangers = await attacking.strangers(400, sent)
        assert await strangers[0].is_closed()


@pytest.mark.parametrize("fields", [1, 100])
async def test_a_huge_head_is_refused(served: Served, fields: int) -> None:
    value = "a" * (65_536 if fields == 1 else 8_000)
    async with attack(served) as attacking:
        for stranger in await attacking.strangers(
            20, head("GET /healthz", *(f"X-{number}: {value}" for number in range(fields)))
        ):
            assert await stranger.status() in (None, 400, 431)
            assert await stranger.is_closed()


@pytest.mark.parametrize(
    "chunk", [b"ffffffffffffffff\r\n", b"7fffffffffffffff\r\n", b"5;" + b"a" * 16 * MIB, b"0\r\n" + b"A: b\r\n" * MIB]
)
async def test_strange_chunks_end_the_connection(served: Served, chunk: bytes) -> None:
    async with attack(served) as attacking:
        stranger = await attacking.stranger()
        sending = asyncio.create_task(stranger.send(head("POST /healthz", "Transfer-Encoding: chunked") + chunk))
        await stranger.status()
        assert await stranger.is_closed()
        await sending


async def test_thousands_of_requests_at_once_are_answered_one_after_the_other(served: Served) -> None:
    async with attack(served) as attacking:
        strangers = [await attacking.stranger() for _ in range(8)]
        sending = [asyncio.create_task(each.send(head("GET /nowhere") * 2_000)) for each in strangers]
        for stranger in strangers:
            assert await stranger.status() in (401, 404)
        await asyncio.sleep(0.5)
        for each in sending:
            each.cancel()


async def test_what_is_no_http_is_refused(served: Served) -> None:
    async with attack(served) as attacking:
        for stranger in await attacking.strangers(50, b"\x16\x03\x01\x02\x00\x01\x00" * 100 + b"\r\n\r\n"):
            assert await stranger.status() in (None, 400)
            assert await stranger.is_closed()
