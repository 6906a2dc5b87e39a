"""Checks what each viewer may read, and limits how many requests of a viewer the history handles at once.

The API server decides from the viewer's token. The history has no rights of its own, and gives none. A decision is
cached briefly under the token's SHA-256. The token itself is sent only to the API server, and never appears in a log,
file or error.

A request holds a place while its viewer is looked up and its answer is read and sent. Strangers (tokens that the API
server hasn't recognised recently) have a few separate places. So a client that invents tokens delays other strangers
briefly, but no known viewer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from trainmaster.client.asynchronous import AiohttpTransport
from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.client.permission import Access, Gate, party_of, put_newest, refusal
from trainmaster.client.server import Server
from trainmaster.serving import Refused, counted
from trainmaster_operator.wire.values import loads, mapping

# Seconds for which a permission and a refusal are cached.
ALLOWED_SECONDS, REFUSED_SECONDS = 30.0, 5.0
# Timeout of the API server's answer (seconds).
REVIEW_SECONDS = 5.0
# Maximum number of cached recognised tokens, of decisions about each, and of cached unknown tokens.
MAX_VIEWERS, MAX_ANSWERS, MAX_UNKNOWN = 2_000, 100, 1_000
# Seconds for which a token stays recognised.
KNOWN_SECONDS = 600.0
# Maximum simultaneous requests: of strangers that are looked up, of strangers that wait to be looked up, of one viewer,
# and of all viewers.
MAX_STRANGERS, MAX_WAITING, MAX_OF_VIEWER, MAX_READS = 16, 64, 16, 128
# Maximum seconds for which a stranger waits for a place.
WAIT_SECONDS = 5.0
# Maximum bytes of answers that wait for slow readers, of one viewer and of all. Above this, requests are refused.
SENDING_OF_VIEWER, SENDING = 8 * 1024 * 1024, 64 * 1024 * 1024
_STRANGERS = "Too many unknown tokens are being checked; try again in a moment."
_token: ContextVar[str] = ContextVar("viewer_token")


@dataclass
class _KnownToken:
    viewer: bytes
    gate: Gate
    seen_at: float


class HistoryViewers:
    """HistoryViewers asks the API server with the viewers' tokens, over connections that all viewers share."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        """`server` must not contain credentials. `client.server.address_of` returns such a server."""
        self._transport = AiohttpTransport(replace(server, authorization=lambda: f"Bearer {_token.get()}"))
        self._clock = clock
        # The keys of both maps are tokens' SHA-256. Invented tokens have a separate map, so they displace no viewers.
        self._known: OrderedDict[bytes, _KnownToken] = OrderedDict()
        self._unknown: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def known(self, token: str) -> bytes | None:
        """Returns the viewer's key if the API server recognised the token recently; None for a stranger."""
        found = self._known.get(_hash(token))
        return None if found is None or self._clock() - found.seen_at > KNOWN_SECONDS else found.viewer

    async def require(self, token: str, access: Access) -> bytes:
        """Returns the viewer's key if they may have this access. Raises Refused."""
        key = _hash(token)
        until, message = self._unknown.get(key, (0.0, ""))
        if until > self._clock():
            raise Refused(401, message)
        known = self._known.get(key)
        if known is None:
            seconds = {"allowed_seconds": ALLOWED_SECONDS, "refused_seconds": REFUSED_SECONDS}
            gate = Gate(self._transport, **seconds, most=MAX_ANSWERS, clock=self._clock)
            known = _KnownToken(_viewer_of(token, key), gate, 0.0)
        # A context variable, so that only this task and its requests see the token.
        _token.set(token)
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                allowed = await known.gate.allows(access)
        except NotAllowed as error:
            self._known.pop(key, None)
            put_newest(self._unknown, key, (self._clock() + REFUSED_SECONDS, str(error)), MAX_UNKNOWN)
            raise Refused(401, str(error)) from error
        except TimeoutError as error:
            raise Refused(503, f"The API server didn't answer within {REVIEW_SECONDS:g} s what you may see.") from error
        except ClientError as error:
            raise Refused(503, f"The API server can't answer what you may see: {error}") from error
        known.seen_at = self._clock()
        self._unknown.pop(key, None)
        put_newest(self._known, key, known, MAX_VIEWERS)
        if not allowed:
            raise Refused(403, refusal(access))
        return known.viewer


class ViewerPlaces:
    """ViewerPlaces limits each viewer's requests. A viewer is identified by the key from `HistoryViewers`."""

    def __init__(self) -> None:
        self._asking = asyncio.Semaphore(MAX_STRANGERS)
        self._waiting = 0
        self._reads: Counter[bytes] = Counter()
        self._sending: Counter[bytes] = Counter()
        self._long: dict[bytes, asyncio.Lock] = {}

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[None]:
        """Holds a stranger's place during the block. Raises Refused."""
        if self._waiting >= MAX_WAITING:
            raise Refused(429, _STRANGERS)
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._asking.acquire()
        except TimeoutError as error:
            raise Refused(429, _STRANGERS) from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._asking.release()

    @contextmanager
    def viewer(self, viewer: bytes) -> Iterator[None]:
        """Holds a viewer's place during the block. Raises Refused."""
        own, total = self._reads[viewer], self._reads.total()
        if own >= MAX_OF_VIEWER:
            raise Refused(429, f"{MAX_OF_VIEWER} of your requests are being answered; wait for one of them.")
        if total >= (MAX_READS if own else 2 * MAX_READS):
            raise Refused(429, f"{total} requests of all viewers are being answered; try again in a moment.")
        if self._sending[viewer] >= SENDING_OF_VIEWER:
            raise Refused(429, "You don't read the answers that you asked for; read them before you ask for more.")
        if own and self._sending.total() >= SENDING:
            raise Refused(429, "Too many answers wait for slow readers; try again in a moment.")
        try:
            with counted(self._reads, viewer, 1):
                yield
        finally:
            if not self._reads[viewer]:
                self._long.pop(viewer, None)

    def long(self, viewer: bytes) -> asyncio.Lock:
        """Returns the viewer's only place for long answers. Their other long requests wait for it."""
        return self._long.setdefault(viewer, asyncio.Lock())

    def sending(self, viewer: bytes, size: int) -> AbstractContextManager[None]:
        """Counts an answer's bytes during the block, in which it is sent."""
        return counted(self._sending, viewer, size)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _viewer_of(token: str, key: bytes) -> bytes:
    """Returns the key of the viewer who owns a recognised token.

    A JSON Web Token names its user, and the API server checks its signature. Any other token counts as a
    separate viewer.
    """
    try:
        claims = token.split(".")[1]
        found = mapping(loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))))
    except (ValueError, IndexError):
        return key
    issuer, subject = found.get("iss"), found.get("sub")
    if not (isinstance(issuer, str) and issuer and isinstance(subject, str) and subject):
        return key
    return hashlib.sha256(json.dumps([issuer, party_of(subject)]).encode()).digest()
