"""The API server decides who may read, by the viewer's own token: the history has no rights, and gives none.

An answer is remembered for a moment, by the SHA-256 of the token. The token itself is sent to the API server and
nowhere else: it is in no log, no file and no error.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trainmaster.client.asynchronous import AiohttpTransport
from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.client.permission import Access, is_allowed
from trainmaster.client.server import Server
from trainmaster_operator.wire.values import loads, mapping

# Seconds for which an answer is remembered: a right that is taken away counts soon, one that is given at once.
ALLOWED_SECONDS, REFUSED_SECONDS = 30.0, 5.0
# Seconds in which the API server has to answer.
REVIEW_SECONDS = 5.0
# Tokens that the API server recognised, answers about each, and tokens that it didn't recognise.
MAX_VIEWERS, MAX_ANSWERS, MAX_UNKNOWN = 2_000, 100, 1_000
# Seconds for which a token that was recognised is no stranger's.
KNOWN_SECONDS = 600.0
_ACCOUNT = "system:serviceaccount:"
Key = TypeVar("Key")
Value = TypeVar("Value")
_token: ContextVar[str] = ContextVar("viewer_token")


class UnknownViewer(Exception):
    """The API server doesn't know who that is."""


class Refused(Exception):
    """The viewer may not read that."""


class NotReviewed(Exception):
    """The API server couldn't be asked, so that nothing is shown."""


@dataclass(frozen=True)
class _Remembered:
    error: type[Exception] | None
    message: str
    until: float


@dataclass
class _Known:
    """_Known is a token that the API server recognised, and what its viewer may do."""

    viewer: bytes
    seen_at: float
    answers: OrderedDict[Access, _Remembered] = field(default_factory=OrderedDict)


class Viewers:
    """Viewers asks the API server in their names, over connections that all of them share."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        """`server` is one without credentials (client.server.address_of)."""
        self._transport = AiohttpTransport(replace(server, authorization=lambda: f"Bearer {_token.get()}"))
        self._clock = clock
        # By the SHA-256 of tokens. Invented ones have a map of their own, so that they displace no viewer's.
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._unknown: OrderedDict[bytes, _Remembered] = OrderedDict()

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def known(self, token: str) -> bytes | None:
        """Returns the key of a viewer whose token the API server recognised lately; None for a stranger's."""
        found = self._known.get(_hash(token))
        return None if found is None or self._clock() - found.seen_at > KNOWN_SECONDS else found.viewer

    async def require(self, token: str, access: Access) -> bytes:
        """Returns the viewer's key where they may do that.

        Raises UnknownViewer, Refused, and NotReviewed where the API server didn't answer.
        """
        key = _hash(token)
        known = self._known.get(key)
        found = self._unknown.get(key) if known is None else known.answers.get(access)
        if found is None or found.until <= self._clock():
            found = await self._ask(token, access)
            known = self._remember(key, token, access, found)
        elif known is not None:
            known.seen_at = self._clock()
            self._known.move_to_end(key)
        if found.error is not None or known is None:
            raise (found.error or UnknownViewer)(found.message)
        return known.viewer

    def _remember(self, key: bytes, token: str, access: Access, found: _Remembered) -> _Known | None:
        if found.error is UnknownViewer:
            self._known.pop(key, None)
            _put(self._unknown, key, found, MAX_UNKNOWN)
            return None
        known = self._known.get(key) or _Known(_viewer_of(token, key), 0.0)
        known.seen_at = self._clock()
        _put(known.answers, access, found, MAX_ANSWERS)
        _put(self._known, key, known, MAX_VIEWERS)
        return known

    async def _ask(self, token: str, access: Access) -> _Remembered:
        # Of the task that asks alone.
        _token.set(token)
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                may = await is_allowed(self._transport, access)
        except NotAllowed as error:
            return _Remembered(UnknownViewer, str(error), self._clock() + REFUSED_SECONDS)
        except TimeoutError as error:
            raise NotReviewed(f"The API server didn't say within {REVIEW_SECONDS:g} s what you may see.") from error
        except ClientError as error:
            raise NotReviewed(f"The API server can't say what you may see: {error}") from error
        if may:
            return _Remembered(None, "", self._clock() + ALLOWED_SECONDS)
        return _Remembered(Refused, _refusal(access), self._clock() + REFUSED_SECONDS)


def _put(remembered: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Remembers a value as the newest, and forgets the oldest where there are too many."""
    remembered[key] = value
    remembered.move_to_end(key)
    while len(remembered) > most:
        remembered.popitem(last=False)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _viewer_of(token: str, key: bytes) -> bytes:
    """Returns whose share a token has, which the API server recognised.

    A user's tokens have one share, and so have all service accounts of a namespace, as on the dashboard: whoever may
    make one makes as many as they like. A JSON Web Token says whose it is, and the API server has checked its
    signature. Any other token has a share of its own.
    """
    try:
        claims = token.split(".")[1]
        found = mapping(loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))))
    except (ValueError, IndexError):
        return key
    issuer, subject = found.get("iss"), found.get("sub")
    if not (isinstance(issuer, str) and issuer and isinstance(subject, str) and subject):
        return key
    if subject.startswith(_ACCOUNT):
        subject = subject.rpartition(":")[0]
    return hashlib.sha256(json.dumps([issuer, subject]).encode()).digest()


def _refusal(access: Access) -> str:
    """Returns the sentence about what a viewer may not do."""
    what = "/".join(part for part in (access.resource, access.subresource) if part)
    what += f".{access.group}" if access.group else ""
    where = f"in namespace {access.namespace}" if access.namespace else "in all namespaces"
    which = f" {access.name!r}" if access.name else ""
    return f"You may not {access.verb} {what}{which} {where}: a Role has to allow it."
