"""Who may read is what the API server says to the viewer's own token: the history has no rights, and gives none.

An answer is remembered for a moment, by the SHA-256 of the token. The token itself is sent to the API server and
nowhere else: it is in no log, no file and no error.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from trainmaster.client.asynchronous import AiohttpTransport
from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.client.permission import Access, is_allowed
from trainmaster.client.server import Server

# Seconds for which an answer is remembered: a right that is taken away counts soon, one that is given at once.
ALLOWED_SECONDS, REFUSED_SECONDS = 30.0, 5.0
# Seconds in which the API server has to answer.
REVIEW_SECONDS = 5.0
MAX_REMEMBERED = 10_000
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


class Viewers:
    """Viewers asks the API server in their names, over connections that all of them share."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        """`server` is one without credentials (client.server.address_of)."""
        self._transport = AiohttpTransport(replace(server, authorization=lambda: f"Bearer {_token.get()}"))
        self._clock = clock
        self._remembered: OrderedDict[tuple[bytes, Access], _Remembered] = OrderedDict()

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def require(self, token: str, access: Access) -> None:
        """Returns where a viewer may do that. Raises UnknownViewer, Refused, and NotReviewed where nobody said it."""
        key = hashlib.sha256(token.encode()).digest(), access
        found = self._remembered.get(key)
        if found is None or found.until <= self._clock():
            found = await self._ask(token, access)
            self._remembered[key] = found
            self._remembered.move_to_end(key)
            while len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        if found.error is not None:
            raise found.error(found.message)

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


def _refusal(access: Access) -> str:
    """Returns the sentence about what a viewer may not do."""
    what = "/".join(part for part in (access.resource, access.subresource) if part)
    what += f".{access.group}" if access.group else ""
    where = f"in namespace {access.namespace}" if access.namespace else "in all namespaces"
    which = f" {access.name!r}" if access.name else ""
    return f"You may not {access.verb} {what}{which} {where}: a Role has to allow it."
