"""Reads and refuses requests, writes long answers and runs tasks together, for the dashboard and the history."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    WaitTimeout,
)
from trainmaster.client.job import require_name, require_namespace
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.wire.limits import MAX_UID
from trainmaster_operator.wire.names import is_metric_name
from trainmaster_operator.wire.values import MAX_TIME, shown

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Key = TypeVar("Key")
MAX_SENTENCE = 2_000
# Bytes of an answer that are written at a time. More is written when the reader has read these.
PIECE_BYTES = 65_536
_STATUSES: tuple[tuple[type[ClientError], int], ...] = (
    (NotAllowed, 403),
    (JobNotFound, 404),
    (JobExists, 409),
    (InvalidRequest, 400),
    (WaitTimeout, 504),
    (NoCluster, 502),
)
_UID = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_UID}}}")
_log = logging.getLogger(__name__)


class Refused(Exception):
    """The request is refused with this HTTP status and message."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers or {}


def refused(error: Exception, request: web.Request) -> Refused:
    """Returns the Refused for an error of a handler. A bug's details are only in the log."""
    match error:
        case Refused():
            return error
        case ClientError():
            status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
            return Refused(status, str(error)[:MAX_SENTENCE])
        case web.HTTPException():
            return Refused(error.status, f"{request.method} {request.path[:200]}: {error.reason}.")
        case TimeoutError() | ConnectionError():
            # The body is incomplete, or the viewer disconnected.
            return Refused(408, "The request is incomplete.")
    _log.error("A request for %s failed", request.path, exc_info=error)
    return Refused(500, "Something went wrong here; this server's log has the details.")


def require_known(request: web.Request, *names: str) -> None:
    """Raises InvalidRequest for a parameter that isn't in `names`, because a misspelt name would have no effect."""
    for name in request.query:
        if name not in names:
            raise InvalidRequest(f"{shown(name)} is no parameter here; there are {', '.join(names)}.")


def job_of(request: web.Request) -> tuple[str, str]:
    """Returns the namespace and name of the job in the path. Raises InvalidRequest."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    require_namespace(namespace)
    require_name(name)
    return namespace, name


def namespace_of(request: web.Request) -> str | None:
    """Returns the parameter `namespace`; None means all namespaces. Raises InvalidRequest."""
    namespace = request.query.get("namespace") or None
    if namespace is not None:
        require_namespace(namespace)
    return namespace


def uid_of(request: web.Request) -> str | None:
    """Returns the uid that selects one of several jobs of one name; None means the newest. Raises InvalidRequest."""
    uid = request.query.get("uid") or None
    if uid is not None:
        require_uid(uid)
    return uid


def require_uid(uid: str) -> None:
    """Raises InvalidRequest if the text can't be a uid."""
    if _UID.fullmatch(uid) is None:
        raise InvalidRequest(f"uid: {shown(uid)} is no uid; leave it out for the newest job of that name.")


def whole_of(
    request: web.Request, name: str, default: int | None = None, *, least: int = 0, most: int = 10**9
) -> int | None:
    """Returns a parameter as an integer, or `default` if it is missing. Raises InvalidRequest."""
    given = request.query.get(name)
    if not given:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 10 and least <= int(given) <= most):
        raise InvalidRequest(f"{name}: {shown(given)} is not a whole number from {least} to {most}.")
    return int(given)


def window_of(request: web.Request) -> tuple[float, float]:
    """Returns the parameters `from` and `to`, by default all times. Raises InvalidRequest."""
    since, until = _time_of(request, "from", 0.0), _time_of(request, "to", MAX_TIME)
    if since > until:
        raise InvalidRequest(f"from: {shown(request.query['from'])} is later than to; give the earlier time as from.")
    return since, until


def _time_of(request: web.Request, name: str, default: float) -> float:
    given = request.query.get(name)
    if not given:
        return default
    try:
        found: float | None = float(given)
    except ValueError:
        found = to_seconds(given)
    if found is None or not 0 <= found <= MAX_TIME:
        raise InvalidRequest(
            f"{name}: {shown(given)} is no time; give seconds since the epoch, or 2026-11-26T03:00:00Z."
        )
    return found


def one_of(request: web.Request, name: str, values: tuple[str, ...]) -> str:
    """Returns a parameter that must be one of `values`, or the first value if it is missing. Raises InvalidRequest."""
    given = request.query.get(name) or values[0]
    if given not in values:
        raise InvalidRequest(f"{name}: {shown(given)} is none of {', '.join(values)}.")
    return given


def names_of(request: web.Request, name: str, most: int) -> list[str]:
    """Returns a parameter's names of curves, which commas separate. Raises InvalidRequest."""
    found = list(dict.fromkeys(filter(None, request.query.get(name, "").split(","))))
    if wrong := next((each for each in found if not is_metric_name(each)), None):
        raise InvalidRequest(f"{name}: {shown(wrong)} is not the name of a metric.")
    if len(found) > most:
        raise InvalidRequest(f"{name}: {len(found)} names are more than {most}.")
    return found


def bearer_of(request: web.Request, header: str = "Authorization") -> str:
    """Returns a header's bearer token; empty if there is none."""
    scheme, _, token = request.headers.get(header, "").partition(" ")
    # aiohttp decodes bytes that aren't UTF-8 as surrogates, which no token contains.
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""


@contextmanager
def counted(counter: Counter[Key], key: Key, size: int) -> Iterator[None]:
    """Adds a size to a key's count during the block. If the count is 0 afterwards, the key is removed."""
    counter[key] += size
    try:
        yield
    finally:
        counter[key] -= size
        if not counter[key]:
            del counter[key]


async def write(
    request: web.Request, response: web.StreamResponse, data: bytes, seconds: float, *, is_all: bool = False
) -> None:
    """Writes data, and waits if the reader is slow. With `is_all`, the data is the whole answer.

    Raises ConnectionError if the reader disconnected, or hasn't read the data after `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            await response.prepare(request)
            for first in range(0, len(data), PIECE_BYTES):
                await response.write(data[first : first + PIECE_BYTES])
            if is_all:
                await response.write_eof()
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader takes nothing") from error


async def first_to_end(*parts: Coroutine[Any, Any, object]) -> None:
    """Runs coroutines until one ends, and cancels the others. If the ended one failed, raises its error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
