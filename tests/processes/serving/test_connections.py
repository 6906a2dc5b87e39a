"""One connection has bounds, here with short times: half heads, half bodies, unread answers, half handshakes."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme
from aiohttp import web

from tests.unit.controller.polling import until
from trainmaster_operator.serving import Exposition, HttpServer, application, connection, server
from trainmaster_operator.serving.connection import Places

HOST = "127.0.0.1"
LARGE = bytes(32 * 1_048_576)


async def read_body(request: web.Request) -> web.Response:
    return web.Response(text=f"{len(await request.read())}\n")


async def large(_: web.Request) -> web.Response:
    return web.Response(body=LARGE)


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def served(*, idle_seconds: float = 75.0, most: int = 256) -> AsyncIterator[tuple[int, Places]]:
    """Serves; yields the port and the places."""
    places = Places(most, most)
    made = application(most_body=100)
    made.router.add_post("/body", read_body)
    made.router.add_get("/large", large)
    made.router.add_get("/never", never)
    listening = HttpServer(made, idle_seconds=idle_seconds, cancels=True, places=places)
    try:
        yield (await listening.start(HOST, 0))[1], places
    finally:
        await listening.close()


async def connected(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(sent)
    return reader, writer


async def answer(port: int, sent: bytes) -> bytes:
    """Returns everything received until the server closes the connection."""
    reader, writer = await connected(port, sent)
    async with asyncio.timeout(10):
        found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize("sent", [b"GET /lar", b"GET /large HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_does_not_come_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    async with served() as (port, places):
        assert (await answer(port, sent)).startswith(b"HTTP/1.1 408 ")
        assert len(places.held) == 0


async def test_an_idle_connection_is_closed() -> None:
    async with served(idle_seconds=0.1) as (port, places):
        assert await answer(port, b"") == b""
        found = await answer(port, b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
        assert found.startswith(b"HTTP/1.1 200 ") and found.endswith(b"\r\n\r\n3\n")
        assert len(places.held) == 0


async def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)
    async with served() as (port, _):
        found = await answer(port, b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
        assert found.startswith(b"HTTP/1.1 408 The body was not complete")


@pytest.mark.parametrize(
    "sent",
    [b"Content-Length: 101\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"a" * 101 + b"\r\n0\r\n\r\n"],
)
async def test_a_body_that_is_too_large_is_refused(sent: bytes) -> None:
    async with served() as (port, _):
        found = await answer(port, b"POST /body HTTP/1.1\r\nHost: x\r\n" + sent)
        assert found.startswith(b"HTTP/1.1 413 ") and b"Connection: close" in found


async def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", 0.2)
    async with served() as (port, places):
        for request in (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /large HTTP/1.0\r\n\r\n"):
            _, writer = await connected(port, request)
            await until(lambda: len(places.held) == 1)
            await until(lambda: len(places.held) == 0)
            writer.close()


async def test_the_kernel_keeps_little_of_what_nobody_reads() -> None:
    async with served() as (port, places):
        _, writer = await connected(port, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: len(places.held) == 1 and not next(iter(places.held)).is_waiting())
        (place,) = places.held
        assert isinstance(place, connection.PeerConnection) and place.transport is not None
        sock = place.transport.get_extra_info("socket")
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            assert sock.getsockopt(socket.SOL_SOCKET, buffer) <= 2 * server.SOCKET_BYTES
        writer.transport.abort()


async def test_a_slow_reader_gets_all_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", 0.2)
    async with served() as (port, _):
        reader, writer = await connected(port, b"GET /large HTTP/1.0\r\n\r\n")
        found = 0
        while data := await reader.read(1_048_576):
            found += len(data)
            await asyncio.sleep(0.01)
        assert found > len(LARGE)
        writer.close()


async def test_a_newcomer_gets_in_where_every_request_is_being_answered() -> None:
    async with served(most=3) as (port, places):
        held = [await connected(port, b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(3)]
        await until(lambda: len(places.held) == 3 and not any(place.is_waiting() for place in places.held))
        found = await answer(port, b"POST /body HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
        assert found.endswith(b"\r\n\r\n3\n") and len(places.held) == 2
        assert await held[0][0].read() == b"" and not held[1][0].at_eof()
        for _, writer in held:
            writer.close()


async def test_answered_half_bodies_push_nobody_out_whose_request_is_on_its_way() -> None:
    async with served(most=4) as (port, places):
        reader, writer = await connected(port, b"")
        await until(lambda: len(places.held) == 1)
        half = []
        for _ in range(9):
            half.append(await connected(port, b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"))
            assert (await half[-1][0].readline()).startswith(b"HTTP/1.1 404 ")
        writer.write(b"POST /body HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
        assert (await reader.read()).endswith(b"\r\n\r\n3\n")
        for _, each in half:
            each.close()


async def test_half_handshakes_have_places_too() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    places = Places(4, 4)
    made = application(most_body=100)
    made.router.add_post("/body", read_body)
    listening = HttpServer(made, places=places)
    _, port = await listening.start(HOST, 0, tls=context)
    try:
        half = [await connected(port, b"\x16\x03\x01") for _ in range(8)]
        async with asyncio.timeout(10):
            assert await half[0][0].read() == b""
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting, server_hostname="localhost")
        writer.write(b"POST /body HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
        assert (await reader.read()).endswith(b"\r\n\r\n3\n") and len(places.held) <= 4
        writer.close()
    finally:
        await listening.close()


async def test_what_a_client_sent_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served() as (port, _):
            found = await answer(port, b"GET /large HTTP/1.1\r\nAuthorization: Bearer s3cret\x00\r\n\r\n")
    assert b" 400 Bad Request" in found and "s3cret" not in caplog.text


async def test_a_page_of_metrics_is_made_once_for_all_and_sent_in_pieces() -> None:
    made = 0
    may_end = threading.Event()

    async def make() -> bytes:
        nonlocal made
        made += 1
        await asyncio.to_thread(may_end.wait, 10)
        return b"a" * (3 * server.PIECE_BYTES + 1)

    page = application(most_body=0)
    page.router.add_get("/metrics", Exposition(make).answer, allow_head=False)
    listening = HttpServer(page)
    _, port = await listening.start(HOST, 0)
    try:
        asking = [asyncio.create_task(answer(port, b"GET /metrics HTTP/1.0\r\n\r\n")) for _ in range(20)]
        await asyncio.sleep(0.2)
        may_end.set()
        found = await asyncio.gather(*asking)
        assert {len(each.partition(b"\r\n\r\n")[2]) for each in found} == {3 * server.PIECE_BYTES + 1}
        assert made == 1
        await answer(port, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert made == 1
    finally:
        await listening.close()
