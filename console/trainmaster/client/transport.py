"""`Transport` exchanges raw dicts with the API server. `HttpTransport` uses urllib3, and `asynchronous` uses aiohttp.

Among the suitable libraries, urllib3 is the fastest to import: it takes 0.11 s of processor time, httpx2 0.20 s,
aiohttp 0.28 s and httpx 0.40 s. Importing the official client takes longer than a whole command.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, InsecureRequestWarning, ReadTimeoutError, SSLError

from trainmaster.client.answers import Answer, Reader
from trainmaster.client.errors import InvalidRequest, NoCluster, NotAllowed
from trainmaster.client.server import Server
from trainmaster.client.time_order import Merger
from trainmaster_operator import __version__
from trainmaster_operator.api.json_codec import encode
from trainmaster_operator.kubeconfig import KubeconfigError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
JSON = "application/json"
# Services behind the API server's proxy read the viewer's token from this header, because the proxy removes
# Authorization.
PASSED_ON = "X-Trainmaster-Authorization"
CHUNK_BYTES = 65536
# Maximum length of a log's line (bytes). Longer lines are split.
MOST_LOG_LINE = 1024 * 1024
# Maximum number of simultaneous requests, for example to a job's agents.
MOST_CONNECTIONS = 16
# Maximum number of connections kept open for workers' logs. urllib3 logs a warning for each further connection.
MOST_KEPT = 256


class RequestOptions(TypedDict, total=False):
    """RequestOptions contains the optional parts of a request. `content_type` is JSON by default."""

    query: Mapping[str, str] | None
    body: Any
    content_type: str


class Transport(Protocol):
    """Transport is the interface of `JobClient`'s connection. Tests replace it."""

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        """Sends one request and returns the decoded JSON object, which contains `kind`. Raises a ClientError."""

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer, until the server ends it or is silent for `read_seconds`."""

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first `limit` bytes of an answer in any format. Raises NoCluster if they don't arrive in time."""


class AsyncTransport(Protocol):
    """AsyncTransport is the interface of `AsyncJobClient`'s connection: `Transport` as coroutines, and more methods."""

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any: ...
    def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]: ...
    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes: ...

    async def sleep(self, seconds: float) -> None:
        """Waits for some seconds."""

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs several coroutines at once and returns their results. The coroutines must not raise."""

    def merger(self) -> Merger[Any]:
        """Returns a merger that reads several logs at once."""


class LineSplitter:
    """LineSplitter splits a streaming answer into lines, and very long lines of logs into pieces."""

    def __init__(self, path: str) -> None:
        # A line of a watch is a JSON object, so it isn't split.
        self._longest = MOST_LOG_LINE if path.endswith("/log") else math.inf
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self._longest:
            whole, self._rest = [*whole, self._rest], b""
        return whole

    def end(self) -> list[bytes]:
        """Returns the rest as the last line, unless it is empty."""
        return [self._rest] if self._rest else []


class HttpTransport:
    """HttpTransport sends requests over urllib3."""

    def __init__(self, server: Server, *, seconds: float | None = READ_SECONDS, reader: Reader | None = None) -> None:
        """`seconds` limits the total time of answers that aren't streamed (None: no limit). `reader` makes errors."""
        self.server = server
        self._seconds = seconds
        self._reader = reader or Reader(server.address)
        self._pool = _pool(server)

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        limit = _Limit(self._seconds)
        response = self._send(method, path, limit, **options)
        return self._reader.decoded(self._whole(response, limit))

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        response = self._send("GET", path, _Limit(None, read_seconds), query=query)
        splitter = LineSplitter(path)
        try:
            for chunk in response.stream(CHUNK_BYTES, decode_content=True):
                yield from splitter.feed(chunk)
            yield from splitter.end()
        except HTTPError:
            # The connection broke or was silent for too long. The caller resumes after the last line that it received.
            return
        finally:
            response.close()

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        time_limit = _Limit(seconds)
        return self._body(self._send("GET", path, time_limit), time_limit, limit)

    def _send(
        self, method: str, path: str, limit: _Limit, **options: Unpack[RequestOptions]
    ) -> urllib3.BaseHTTPResponse:
        """Returns a successful answer whose body is still unread. Raises a ClientError."""
        try:
            response = self._pool.request(
                method,
                url(self.server, path, options.get("query")),
                headers=request_headers(self.server, options.get("content_type", JSON)),
                body=encoded(options.get("body")),
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=limit.read_seconds, total=limit.seconds),
                preload_content=False,
                redirect=False,
            )
        except KubeconfigError as error:
            # The exec plugin couldn't provide new credentials.
            raise NoCluster(f"{error}.") from error
        except (SSLError, ssl.SSLError) as error:
            raise self._reader.untrusted(error) from error
        except ReadTimeoutError as error:
            raise self._reader.unreachable(limit.over("nothing came for")) from error
        except (HTTPError, OSError) as error:
            raise self._reader.unreachable(error) from error
        if not 200 <= response.status < 300:
            raise self._reader.refusal(self._whole(response, limit), path)
        return response

    def _whole(self, response: urllib3.BaseHTTPResponse, limit: _Limit) -> Answer:
        return Answer(response.status, response.headers, self._body(response, limit))

    def _body(self, response: urllib3.BaseHTTPResponse, limit: _Limit, most: int | None = None) -> bytes:
        """Returns an answer's body, or its first `most` bytes. Raises NoCluster if they don't arrive in time."""
        body = bytearray()
        try:
            for chunk in limit.chunks(response):
                body += chunk
                if most is not None and len(body) >= most:
                    response.close()
                    break
        except (HTTPError, TimeoutError) as error:
            raise self._reader.broken_off(error) from error
        finally:
            response.release_conn()
        return bytes(body[:most])


class _Limit:
    """_Limit limits the total time of an answer, because urllib3 limits only each wait for more data."""

    def __init__(self, seconds: float | None, read_seconds: float | None = None) -> None:
        """`seconds` limits the total time from now; `read_seconds` limits each wait for more data."""
        self.seconds, self.read_seconds = seconds, read_seconds
        self._until = None if seconds is None else time.monotonic() + seconds

    def chunks(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        """Yields the answer's body as it arrives. Raises TimeoutError at the limit, and urllib3's errors."""
        while True:
            if self._until is not None:
                left = self._until - time.monotonic()
                if left <= 0:
                    raise self.over()
                if (socket := getattr(response.connection, "sock", None)) is not None:
                    # urllib3 resets this timeout for the next request.
                    socket.settimeout(left)
            try:
                chunk = response.read1(CHUNK_BYTES, decode_content=True)
            except ReadTimeoutError as error:
                raise self.over() from error
            if not chunk:
                return
            yield chunk

    def over(self, what: str = "not whole after") -> TimeoutError:
        """Returns the error for an answer that exceeds the limit."""
        return TimeoutError(f"{what} {(self.read_seconds if self.seconds is None else self.seconds) or 0:g} s")


def request_headers(server: Server, content_type: str) -> dict[str, str]:
    """Returns the headers of the next request. Raises KubeconfigError."""
    headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": f"trainmaster/{__version__}"}
    if server.acting_as is not None:
        headers["Impersonate-User"] = server.acting_as
    if server.passed_on is not None and (passed_on := server.passed_on()) is not None:
        headers[PASSED_ON] = passed_on
    authorization = server.authorization()
    return headers if authorization is None else {**headers, "Authorization": authorization}


def encoded(body: Any) -> bytes | None:
    """Encodes a request's body, unless it is None. Raises InvalidRequest for values that JSON can't represent."""
    try:
        return None if body is None else encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"what was given can't be JSON ({error}): give None, True, False, finite numbers, text, and lists and "
            "mappings of them"
        ) from error


def url(server: Server, path: str, query: Mapping[str, str] | None) -> str:
    """Returns the address of a request."""
    return f"{server.address}{path}?{urlencode(query, quote_via=quote)}" if query else f"{server.address}{path}"


def _pool(server: Server) -> urllib3.PoolManager:
    options: dict[str, Any] = {"retries": False, "maxsize": MOST_KEPT}
    if server.tls is not None:
        options |= {"ssl_context": server.tls, "cert_reqs": server.tls.verify_mode}
        if server.tls.verify_mode == ssl.CERT_NONE:
            # The user has chosen insecure-skip-tls-verify.
            urllib3.disable_warnings(InsecureRequestWarning)
    if server.certificate_name is not None:
        options["server_hostname"] = server.certificate_name
    if server.proxy is None:
        return urllib3.PoolManager(**options)
    if server.proxy.startswith("socks"):
        from urllib3.contrib.socks import SOCKSProxyManager

        return SOCKSProxyManager(server.proxy, **options)
    account = urllib3.util.parse_url(server.proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=account) if account else None
    return urllib3.ProxyManager(server.proxy, proxy_headers=headers, **options)


@dataclass(frozen=True)
class ReadOnlyTransport:
    """ReadOnlyTransport sends only GET requests, for programs that read on behalf of others."""

    transport: Transport

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        """Sends a GET request. Raises NotAllowed for other methods."""
        if method != "GET" or options.get("body") is not None:
            raise NotAllowed(f"{method} {path} was not sent: this connection only reads.")
        return self.transport.request("GET", path, **options)

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        return self.transport.lines(path, query=query, read_seconds=read_seconds)

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        return self.transport.beginning(path, limit=limit, seconds=seconds)
