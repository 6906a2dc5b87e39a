"""`apiserver.pod_http`: a pod's answer costs only a small buffer, through the API server too."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client import Configuration

from tests.processes.controller.hostile_server import Answer, HostileServer, answering, endless, hostile
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver import pod_http
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import PODS
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import ClusterError, Silent, Unavailable, Unusable
from trainmaster_operator.controller.leaders.targets import AgentAddress, Reach

NO_CONTENT = answering(b"HTTP/1.1 204 No Content\r\n\r\n")
# The kernel's and asyncio's buffers on both sides; the bodies' bounds are far below.
BUFFERED = 8 * 1024 * 1024


@asynccontextmanager
async def api_server(server: HostileServer) -> AsyncIterator[KubernetesCluster]:
    """Serves as an API server that passes on a pod's answers, as the pod proxy does."""
    configuration = Configuration()
    configuration.host = server.url
    cluster = KubernetesCluster(ApiConnection(configuration, in_cluster=False))
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def reaching(way: str, server: HostileServer) -> AsyncIterator[Reach]:
    reach = Reach(server.port)
    async with api_server(server) as cluster:
        yield reach if way == "direct" else Reach(server.port, proxy=cluster)
        await reach.close()


async def ask(reach: Reach, server: HostileServer, method: str = "GET") -> bytes:
    """Returns the first piece of the answer."""
    agent = AgentAddress("team", "bert-0", "uid", 0, server.address)
    body = None if method == "GET" else b"{}"
    async with reach.open(method, agent, "/v1/x", "token", body) as stream:  # type: ignore[arg-type]
        async for chunk in stream.chunks():
            return chunk
    return b""


WAYS = pytest.mark.parametrize("way", ["direct", "proxy"])


@WAYS
async def test_what_came_with_the_head_is_handed_on_together(way: str) -> None:
    """A leader's hello may come with the reports behind it; a decision in between would miss the reports."""
    body = b"x" * 2_000
    whole = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + body)
    async with hostile(whole) as server, reaching(way, server) as reach:
        assert await ask(reach, server) == body


@WAYS
@pytest.mark.parametrize("status", [b"302 Found", b"307 Temporary Redirect"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_redirect_is_never_followed(way: str, status: bytes, method: str) -> None:
    """A redirect used to send the operator to the metadata address, with a blind POST."""
    async with hostile(NO_CONTENT, "127.0.0.2") as metadata:
        redirect = b"HTTP/1.1 %s\r\nLocation: %s/latest\r\nContent-Length: 0\r\n\r\n" % (status, metadata.url.encode())
        async with hostile(answering(redirect)) as pod, reaching(way, pod) as reach:
            with pytest.raises(Unusable, match=r"a redirect to 'http://127\.0\.0\.2:\d+/latest' \(HTTP 30\d\)"):
                await ask(reach, pod, method)
        assert metadata.heads == []


@WAYS
async def test_no_content_encoding_is_undone(way: str) -> None:
    bomb = gzip.compress(b"\n" * 1_000_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb), bomb)
    async with hostile(answering(answer)) as pod, reaching(way, pod) as reach:
        with pytest.raises(Unusable, match="the content encoding 'gzip', and none is accepted"):
            await ask(reach, pod)
        assert "accept-encoding: identity\r\n" in pod.heads[0].lower()


@WAYS
@pytest.mark.parametrize("status", [b"500 Oh", b"404 Gone", b"200 Fine"])
async def test_an_endless_body_is_read_to_a_bound(way: str, status: bytes) -> None:
    """An error's body once brought 620 MB in five seconds."""
    answer = endless(b"HTTP/1.1 %s\r\n\r\n" % status, b"x" * 65_536)
    async with hostile(answer) as pod, reaching(way, pod) as reach:
        try:
            assert len(await ask(reach, pod)) <= pod_http.PIECE
        except ClusterError as error:
            assert len(error.message) <= 300
        await until(lambda: pod.closed == 1)
        assert pod.sent < BUFFERED


@WAYS
async def test_a_head_that_never_ends_is_given_up(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_http, "HEAD_SECONDS", 0.3)
    answer = endless(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x", pause=0.02)
    async with hostile(answer) as pod, reaching(way, pod) as reach:
        with pytest.raises(Silent, match=r"no answer within 0\.3 s"):
            await ask(reach, pod)
        await until(lambda: pod.closed == 1)


@WAYS
@pytest.mark.parametrize(
    "answer",
    [
        endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 10_000),
    ],
    ids=["heads that are no answer", "a chunk's extension"],
)
async def test_bytes_of_which_nothing_comes_are_read_to_a_bound(way: str, answer: Answer) -> None:
    """If the body isn't read any more, the sender has to stop; previously it was read for as long as it came."""
    async with hostile(answer) as pod, reaching(way, pod) as reach:
        with pytest.raises(Unusable, match=r"\d+ bytes and nothing that follows from them"):
            await ask(reach, pod)
        await until(lambda: pod.closed == 1)
        assert pod.sent < BUFFERED


@WAYS
async def test_a_connection_to_a_pod_is_used_once(way: str) -> None:
    """On an idle connection a pod could send any amount of data, which nobody reads and which is all buffered."""
    async with hostile(NO_CONTENT) as pod, reaching(way, pod) as reach:
        await ask(reach, pod)
        await until(lambda: pod.closed == 1)


async def test_a_cookie_of_a_pod_does_not_reach_the_api_server() -> None:
    """Through the proxy it would be the API server's own cookie; with 100 long ones, each request is refused as too
    large.
    """
    cookie = b"HTTP/1.1 204 No Content\r\nSet-Cookie: a=b\r\n\r\n"
    # A name, because aiohttp doesn't keep cookies of an address.
    async with hostile(answering(cookie), "localhost") as server, reaching("proxy", server) as reach:
        await ask(reach, server)
        await ask(reach, server)
        assert len(server.heads) == 2
        assert "cookie" not in "".join(server.heads).lower()


async def test_the_api_server_is_not_followed_either() -> None:
    async with hostile(NO_CONTENT, "127.0.0.2") as elsewhere:
        redirect = b"HTTP/1.1 307 Go\r\nLocation: %s/\r\nContent-Length: 0\r\n\r\n" % elsewhere.url.encode()
        async with hostile(answering(redirect)) as server, api_server(server) as cluster:
            with pytest.raises(Unusable, match="none is followed"):
                await cluster.get(PODS, "team", "bert-0")
        assert elsewhere.heads == []


async def test_watching_follows_no_redirect_either() -> None:
    """kopf's requests go through our session, which reports what is requested."""
    requested: list[tuple[str, bool]] = []
    async with hostile(NO_CONTENT, "127.0.0.2") as elsewhere:
        redirect = b"HTTP/1.1 302 Go\r\nLocation: %s/\r\nContent-Length: 0\r\n\r\n" % elsewhere.url.encode()
        async with hostile(answering(redirect)) as server:
            configuration = Configuration()
            configuration.host = server.url
            info = await ApiConnection(configuration, in_cluster=False).for_kopf(
                lambda path, is_watch: requested.append((path, is_watch)), lambda path: None
            )
            async with info.aiohttp_session as session:
                with pytest.raises(Unusable, match="GET /api/v1/pods: a redirect to 'http://127"):
                    await session.get(f"{server.url}/api/v1/pods?watch=true")
        assert requested == [("/api/v1/pods", True)]
        assert elsewhere.heads == []


async def test_an_error_of_the_api_server_is_read_to_a_bound() -> None:
    answer = endless(b"HTTP/1.1 503 Oh\r\n\r\n", b"x" * 65_536)
    async with hostile(answer) as server, api_server(server) as cluster:
        with pytest.raises(Unavailable):
            await cluster.get(PODS, "team", "bert-0")
        await until(lambda: server.closed == 1)
        assert server.sent < BUFFERED + pod_http.API_ERROR_BYTES


async def test_a_log_is_read_to_the_bound_that_was_asked_for() -> None:
    answer = endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536)
    async with hostile(answer) as server, api_server(server) as cluster:
        log = await cluster.pod_log("team", "bert-0", tail_lines=10, limit_bytes=5_000)
        assert log == "x" * 5_000
        await until(lambda: server.closed == 1)
        assert server.sent < BUFFERED
