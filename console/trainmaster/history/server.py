"""Serves the history over HTTP: receives the operator's records, and answers viewers.

Errors are Status objects as in Kubernetes. If a parameter is invalid, the error's message names it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from trainmaster.client.history.answers import MOST_COLUMNS, MOST_JOBS, MOST_LINES, MOST_POINTS, HistoryAnswer
from trainmaster.client.permission import Access
from trainmaster.history.answers import Answers, AnswerThreads, AnswerTooSlow, Body, Busy, NotRecorded
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.figures import HEAT_FIGURES, PEAK
from trainmaster.history.recorder import REASONS, CannotRecord, HistoryMetrics, HistoryRecorder
from trainmaster.history.schema import UnusableHistory
from trainmaster.history.viewers import Full, HistoryViewers, NotPermitted, NotReviewed, UnknownViewer, ViewerPlaces
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.values import DNS_LABEL_PATTERN
from trainmaster_operator.serving import Exposition, HttpServer, application
from trainmaster_operator.wire.limits import MAX_INDEX, MAX_UID
from trainmaster_operator.wire.values import MAX_TIME, ProtocolError, shown

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 * 1024 * 1024
# Maximum number of batches of records in memory.
MAX_WRITES = 4
# Bytes of one piece of an answer, and seconds after which sending is cancelled if the reader doesn't read.
_PIECE_BYTES, SEND_SECONDS = 65_536, 30.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JOB = "/v1/namespaces/{namespace}/jobs/{name}"
_JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(rf"(?=.{{1,63}}$){DNS_LABEL_PATTERN}")
_UID = re.compile(rf"[A-Za-z0-9._-]{{0,{MAX_UID}}}")
_PLACE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?):(\d{1,12})")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[[Answers, str, str, str], HistoryAnswer]


class BadQuery(Exception):
    """A parameter is invalid. The message names it and describes a valid value."""


class Query:
    """Query reads a request's parameters. Each method raises BadQuery if its parameter is invalid."""

    def __init__(self, values: Mapping[str, str], *known: str) -> None:
        """Raises BadQuery for a name that isn't in `known`, because a misspelt name would have no effect."""
        for name in values:
            if name not in known:
                raise BadQuery(f"{shown(name)} is no parameter here; there are {', '.join(known)}.")
        self._values = values

    def text(self, name: str, pattern: re.Pattern[str], problem: str) -> str:
        """Returns a text parameter; empty if it is missing."""
        found = self._values.get(name, "")
        return _matched(name, found, pattern, problem) if found else ""

    def namespace(self) -> str:
        """Returns the namespace; empty means all namespaces."""
        return self.text("namespace", _NAMESPACE, "is no name of a namespace.")

    def name(self) -> str:
        """Returns the job's name; empty means any name."""
        return self.text("name", _JOB_NAME, "is no name of a job.")

    def uid(self) -> str:
        """Returns the job's uid; empty means the newest job of its name."""
        return self.text("uid", _UID, "is no uid; leave it out for the newest job of that name.")

    def window(self) -> TimeWindow:
        """Returns the time between `from` and `to`, which are seconds since the epoch or RFC 3339."""
        window = TimeWindow(self._time("from", 0.0), self._time("to", MAX_TIME))
        if window.since > window.until:
            raise BadQuery(f"from: {shown(self._values['from'])} is later than to; give the earlier time as from.")
        return window

    def whole(self, name: str, default: Any, least: int, most: int) -> Any:
        """Returns an integer parameter from `least` to `most`, or `default` if it is missing."""
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and least <= int(text) <= most):
            raise BadQuery(f"{name}: {shown(text)} is not a whole number from {least} to {most}.")
        return int(text)

    def figure(self) -> str:
        """Returns the name of a heat map's figure."""
        found = self._values.get("figure", PEAK)
        if found not in HEAT_FIGURES:
            raise BadQuery(f"figure: {shown(found)} is none of {', '.join(HEAT_FIGURES)}.")
        return found

    def before(self) -> tuple[float, int] | None:
        """Returns the position at which the previous list ended."""
        problem = "is not from a list's answer; give the one of the list before this."
        found = _PLACE.fullmatch(self.text("continue", _PLACE, problem))
        return None if found is None else (float(found[1]), int(found[2]))

    def _time(self, name: str, default: float) -> float:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            found: float | None = float(text)
        except ValueError:
            found = to_seconds(text)
        if found is None or not 0 <= found <= MAX_TIME:
            raise BadQuery(f"{name}: {shown(text)} is no time; give seconds since the epoch, or 2026-11-26T03:00:00Z.")
        return found


class RefusedRequest(Exception):
    """A request is refused with this HTTP status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_ERRORS: dict[type[Exception], int] = {
    ProtocolError: 400,
    BadQuery: 400,
    UnknownViewer: 401,
    NotPermitted: 403,
    NotRecorded: 404,
    Full: 429,
    Busy: 503,
    NotReviewed: 503,
    CannotRecord: 503,
    UnusableHistory: 503,
    AnswerTooSlow: 504,
}


class HistoryServer:
    """HistoryServer serves a history over HTTP. `viewers` decides who may read it."""

    def __init__(
        self,
        recorder: HistoryRecorder,
        readers: AnswerThreads,
        viewers: HistoryViewers,
        metrics: HistoryMetrics,
        file: Path,
        token_file: Path | None,
    ) -> None:
        self._recorder, self._readers, self._viewers, self._metrics = recorder, readers, viewers, metrics
        self._file, self._token_file = file, token_file
        self._writes = 0
        self._places = ViewerPlaces()
        app = application(most_body=MAX_BODY_BYTES, middlewares=[self._answered])
        app.router.add_post("/v1/records", self._record)
        app.router.add_get("/v1/jobs", self._list, allow_head=False)
        app.router.add_get(_JOB, self._job, allow_head=False)
        app.router.add_get(f"{_JOB}/series", self._series, allow_head=False)
        app.router.add_get(f"{_JOB}/heat", self._heat, allow_head=False)
        app.router.add_get(f"{_JOB}/evidence", self._evidence, allow_head=False)
        app.router.add_get(f"{_JOB}/logs", self._logs, allow_head=False)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._health)
        app.router.add_get("/metrics", Exposition(self._page).answer, allow_head=False)
        self._server = HttpServer(app)

    async def start(self, address: str, port: int) -> int:
        """Listens, and returns the port. If `port` is 0, a free port is used. Raises OSError."""
        return (await self._server.start(address, port))[1]

    async def close(self) -> None:
        """Refuses new requests, and waits for the answers in progress."""
        await self._server.close()

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Runs a handler. If it raises an error, answers with a Status object."""
        try:
            return await handler(request)
        except web.HTTPException as error:
            status = error.status
            message = f"{request.method} {request.path}: {error.reason}."
            if status == 413:
                message = f"The body has more than {MAX_BODY_BYTES} bytes; send fewer records at once."
        except RefusedRequest as error:
            status, message = error.status, str(error)
        except tuple(_ERRORS) as error:
            status, message = _ERRORS[type(error)], str(error)
        except sqlite3.Error as error:
            log.warning("%s can't be read: %s", self._file, error)
            status, message = 503, f"The history can't be read now: {error}."
        except Exception:
            log.exception("A request for %s failed because of a bug in the history.", request.path)
            status, message = 500, "The history failed because of a bug; its log has the details."
        reason = REASONS.get(status, "BadRequest")
        self._metrics.refused.labels(reason=reason).inc()
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
        headers = {**_HEADERS, **({"Retry-After": "1"} if status in (429, 503) else {})}
        return web.json_response({**body, "code": status}, status=status, headers=headers)

    async def _record(self, request: web.Request) -> web.Response:
        self._require_writer(request)
        if self._writes >= MAX_WRITES:
            raise RefusedRequest(503, f"{MAX_WRITES} batches are being written; send this one again.")
        self._writes += 1
        try:
            number = await self._recorder.record(await request.read())
        finally:
            self._writes -= 1
        return web.json_response({"kind": "Recorded", "records": number}, headers=_HEADERS)

    def _require_writer(self, request: web.Request) -> None:
        """Raises RefusedRequest if a request lacks the writer's token, which can be replaced at any time."""
        if self._token_file is None:
            raise RefusedRequest(401, "This history has no writer: start it with --writer-token-file.")
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            log.error("The writer's token can't be read (%s: %s).", self._token_file, error.strerror)
            raise RefusedRequest(503, "The writer's token can't be read; the history's log names the file.") from error
        given = _bearer(request, "Authorization")
        if not token or not hmac.compare_digest(given.encode(), token):
            raise RefusedRequest(401, "That isn't the writer's token; give the operator the same --history-token-file.")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query, "namespace", "name", "limit", "continue")
        namespace, name, before = query.namespace(), query.name(), query.before()
        limit = query.whole("limit", MOST_JOBS, 1, MOST_JOBS)
        return await self._read(
            request,
            [Access("list", namespace=namespace)],
            lambda answers: answers.jobs(namespace, name, limit=limit, before=before),
            is_long=False,
        )

    async def _job(self, request: web.Request) -> web.StreamResponse:
        return await self._read_job(request, Query(request.query, "uid"), Answers.job, is_long=False)

    async def _series(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query, "uid", "from", "to", "points")
        window, points = query.window(), query.whole("points", 1000, 1, MOST_POINTS)
        return await self._read_job(
            request, query, lambda answers, *job: answers.series(*job, window=window, points=points)
        )

    async def _heat(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query, "uid", "from", "to", "columns", "figure")
        window, figure = query.window(), query.figure()
        columns = query.whole("columns", MOST_COLUMNS, 1, MOST_COLUMNS)
        return await self._read_job(
            request, query, lambda answers, *job: answers.heat(*job, window=window, columns=columns, figure=figure)
        )

    async def _evidence(self, request: web.Request) -> web.StreamResponse:
        return await self._read_job(
            request, Query(request.query, "uid"), Answers.evidence, Access("get", "configmaps", "")
        )

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query, "uid", "worker", "tail")
        worker, tail = query.whole("worker", None, 0, MAX_INDEX), query.whole("tail", None, 0, MOST_LINES)
        return await self._read_job(
            request,
            query,
            lambda answers, *job: answers.logs(*job, worker=worker, tail=tail),
            Access("get", "pods", "", subresource="log"),
        )

    async def _read_job(
        self, request: web.Request, query: Query, ask: Ask, *more: Access, is_long: bool = True
    ) -> web.StreamResponse:
        """Answers if the viewer may get the job and also has the rights `more` in its namespace."""
        namespace = _matched("namespace", request.match_info["namespace"], _NAMESPACE, "is no name of a namespace.")
        name = _matched("name", request.match_info["name"], _JOB_NAME, "is no name of a job.")
        uid = query.uid()
        asked = [Access("get", namespace=namespace, name=name)]
        asked += [Access(each.verb, each.resource, each.group, namespace, "", each.subresource) for each in more]
        return await self._read(request, asked, lambda answers: ask(answers, namespace, name, uid), is_long=is_long)

    async def _read(
        self,
        request: web.Request,
        asked: list[Access],
        ask: Callable[[Answers], HistoryAnswer],
        *,
        is_long: bool,
    ) -> web.StreamResponse:
        # The API server's proxy to Services doesn't forward the Authorization header.
        token = _bearer(request, "X-Trainmaster-Authorization") or _bearer(request, "Authorization")
        if not token:
            raise RefusedRequest(
                401, "The request has no token: send your Kubernetes token as 'Authorization: Bearer …'."
            )
        viewer = self._viewers.known(token)
        if viewer is None:
            async with self._places.stranger():
                viewer = await self._viewers.require(token, asked[0])
        with self._places.viewer(viewer):
            for access in asked:
                await self._viewers.require(token, access)
            compress = "gzip" in request.headers.get("Accept-Encoding", "").lower()
            if not is_long:
                return await self._send(request, viewer, await self._readers.read(ask, compress=compress))
            async with self._places.long(viewer):
                body = await self._readers.read(ask, is_long=True, compress=compress)
                return await self._send(request, viewer, body)

    async def _send(self, request: web.Request, viewer: bytes, body: Body) -> web.StreamResponse:
        """Sends an answer. The request keeps its place until then, which limits the memory that slow readers use."""
        response = web.StreamResponse(headers={**_HEADERS, "Vary": "Accept-Encoding"})
        response.content_type = "application/json"
        if body.is_compressed:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = len(body.data)
        try:
            with self._places.sending(viewer, len(body.data)):
                async with asyncio.timeout(SEND_SECONDS):
                    await response.prepare(request)
                    for first in range(0, len(body.data), _PIECE_BYTES):
                        await response.write(body.data[first : first + _PIECE_BYTES])
                    await response.write_eof()
        except ConnectionError:
            log.debug("The reader of %s went away.", request.path)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _page(self) -> bytes:
        self._metrics.jobs.set(int((await self._readers.read(lambda answers: answers.count())).data))
        parts = (self._file.with_name(self._file.name + suffix) for suffix in ("", "-wal"))
        self._metrics.bytes.set(sum(part.stat().st_size for part in parts if part.exists()))
        return self._metrics.text()


def _matched(name: str, value: str, pattern: re.Pattern[str], problem: str) -> str:
    """Returns the value. Raises BadQuery if it doesn't match."""
    if pattern.fullmatch(value) is None:
        raise BadQuery(f"{name}: {shown(value)} {problem}")
    return value


def _bearer(request: web.Request, header: str) -> str:
    """Returns a header's bearer token; empty if there is none."""
    scheme, _, token = request.headers.get(header, "").partition(" ")
    # aiohttp decodes bytes that aren't UTF-8 as surrogates, which no token contains.
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""
