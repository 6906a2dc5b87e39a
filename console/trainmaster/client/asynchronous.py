"""`AiohttpTransport` sends requests from coroutines over aiohttp, by the same rules as `HttpTransport`."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar, Unpack

import aiohttp

from trainmaster.client.answers import Answer, Reader
from trainmaster.client.errors import NoCluster
from trainmaster.client.server import Fixed, Server
from trainmaster.client.time_order import HOLD_SECONDS, MAX_AHEAD, Arrival, Merger, Source
from trainmaster.client.transport import (
    CONNECT_SECONDS,
    JSON,
    MOST_CONNECTIONS,
    READ_SECONDS,
    LineSplitter,
    RequestOptions,
    encoded,
    request_headers,
    url,
)
from trainmaster_operator.kubeconfig import KubeconfigError

T = TypeVar("T")

# How much of a refusal is read (bytes). A pod behind the API server's proxy may send an answer of any size.
MOST_REFUSAL = 65_536


class AiohttpTransport:
    """AiohttpTransport sends all requests in the event loop of the first request. Transports may share a connector."""

    # Session options, and the size limit of an answer (bytes). Subclasses that serve many users set them.
    session_options: Mapping[str, Any] = {}
    most_bytes: float = math.inf

    def __init__(
        self, server: Server, connector: aiohttp.BaseConnector | None = None, *, reader: Reader | None = None
    ) -> None:
        """`reader` turns answers into errors. It is needed if the server isn't a Kubernetes API server."""
        if (server.proxy or "").startswith("socks"):
            raise NoCluster("The asynchronous client uses no SOCKS proxy; use JobClient, or a proxy of HTTP.")
        self.server = server
        self._reader = reader or Reader(server.address)
        self._session: aiohttp.ClientSession | None = None
        self._connector = connector
        # Prevents several runs of the exec plugin at the same time.
        self._authorizing = asyncio.Lock()

    async def close(self) -> None:
        """Closes the connections, unless they are shared."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        response = await self._send(method, path, READ_SECONDS, **options)
        return self._reader.decoded(await self._whole(response))

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        response = await self._send("GET", path, read_seconds, query=query)
        try:
            async with aclosing(self._lines_of(response, path, query)) as lines:
                async for line in lines:
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError):
            # The connection broke or was silent for too long. The caller resumes after the last line that it received.
            return
        finally:
            response.close()

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                response = await self._send("GET", path, seconds)
                try:
                    return (await self._whole(response, limit)).body
                finally:
                    response.close()
        except TimeoutError as error:
            raise self._reader.broken_off(TimeoutError(f"not whole after {seconds:g} s")) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs the coroutines as tasks, a limited number at a time."""
        free = self._parts_at_once()

        async def limited(part: Coroutine[Any, Any, T]) -> T:
            async with free:
                return await part

        return list(await asyncio.gather(*map(limited, parts)))

    def merger(self) -> Merger[Any]:
        return TaskMerger()

    async def _lines_of(
        self, response: aiohttp.ClientResponse, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        splitter = LineSplitter(path)
        async for chunk in response.content.iter_any():
            for line in splitter.feed(chunk):
                yield line
        for line in splitter.end():
            yield line

    def _parts_at_once(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(MOST_CONNECTIONS)

    async def _send(
        self, method: str, path: str, read_seconds: float | None, **options: Unpack[RequestOptions]
    ) -> aiohttp.ClientResponse:
        """Returns a successful answer whose body is still unread. Raises a ClientError."""
        from yarl import URL

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector or connector_to(self.server),
                connector_owner=self._connector is None,
                **self.session_options,
            )
        try:
            headers = await self._headers(options.get("content_type", JSON))
            response = await self._session.request(
                method,
                URL(url(self.server, path, options.get("query")), encoded=True),
                headers=headers,
                data=encoded(options.get("body")),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=read_seconds),
                allow_redirects=False,
                proxy=self.server.proxy,
                server_hostname=self.server.certificate_name,
            )
        except KubeconfigError as error:
            raise NoCluster(f"{error}.") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise self._reader.untrusted(error) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._reader.unreachable(error) from error
        if not 200 <= response.status < 300:
            raise self._reader.refusal(await self._whole(response, MOST_REFUSAL), path)
        return response

    async def _headers(self, content_type: str) -> dict[str, str]:
        if isinstance(self.server.authorization, Fixed) and self.server.passed_on is None:
            return request_headers(self.server, content_type)
        async with self._authorizing:
            # This may run a plugin or request a token, so it runs in a thread and doesn't block the event loop.
            return await asyncio.to_thread(request_headers, self.server, content_type)

    async def _whole(self, response: aiohttp.ClientResponse, cut_at: float = math.inf) -> Answer:
        """Returns an answer, cut at `cut_at` bytes. Raises NoCluster if it is incomplete or exceeds `most_bytes`."""
        body = bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > min(cut_at, self.most_bytes):
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._reader.broken_off(error) from error
        finally:
            response.release()
        if len(body) > self.most_bytes:
            raise self._reader.broken_off(ValueError(f"it has more than {self.most_bytes / 2**20:g} MiB"))
        return Answer(response.status, response.headers, bytes(body[: int(min(cut_at, len(body)))]))


def connector_to(server: Server) -> aiohttp.TCPConnector:
    """Returns a connector with unlimited connections to a server, because each followed log needs a connection."""
    return aiohttp.TCPConnector(limit=0, ssl=server.tls if server.tls is not None else True)


class TaskMerger(Merger[Source]):
    """TaskMerger reads each log in a task of its own."""

    room, queue = asyncio.Event, asyncio.Queue

    def __init__(self, ahead: int = MAX_AHEAD, hold_seconds: float = HOLD_SECONDS) -> None:
        super().__init__(ahead, hold_seconds)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await super().close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, reading: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(reading)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arrived(self, seconds: float | None) -> list[Arrival[Source]]:
        # The reading tasks run only while this coroutine waits.
        await asyncio.sleep(0)
        found = []
        if self._arrivals.empty():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    found.append(await self._arrivals.get())
        while not self._arrivals.empty():
            found.append(self._arrivals.get_nowait())
        return found
