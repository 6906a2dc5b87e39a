"""The history over HTTP takes records from the operator, and answers viewers; errors are Kubernetes' Status objects."""

from __future__ import annotations

import hashlib
import hmac
import logging
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from trainmaster.client.permission import Access
from trainmaster.history.access import NotReviewed, Refused, UnknownViewer, Viewers
from trainmaster.history.answers import Answers, NotRecorded
from trainmaster.history.metrics import REASONS, HistoryMetrics
from trainmaster.history.queries import MAX_JOBS, BadQuery, Query, require_job_name, require_namespace
from trainmaster.history.reading import Readers, TooSlow
from trainmaster.history.recorder import CannotRecord, Recorder
from trainmaster.history.schema import UnusableFile
from trainmaster.serving import Exposition, HttpServer, application
from trainmaster.wire.errors import ProtocolError

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 * 1024 * 1024
# Requests at a time: bodies that are held in memory, those of one viewer, and those of all.
MAX_WRITES, MAX_OF_VIEWER, MAX_READS = 4, 16, 128
# Answers that are longer are compressed for who takes it.
_COMPRESSED_BYTES = 4_096
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JOB = "/v1/namespaces/{namespace}/jobs/{name}"
_ERRORS: dict[type[Exception], int] = {
    ProtocolError: 400,
    BadQuery: 400,
    UnknownViewer: 401,
    Refused: 403,
    NotRecorded: 404,
    NotReviewed: 503,
    CannotRecord: 503,
    UnusableFile: 503,
    TooSlow: 504,
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[[Answers, str, str, str], dict[str, Any]]


class Refusal(Exception):
    """A request is refused: the answer's status, and one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HistoryServer:
    """Serves a history; who may read it is asked of `viewers`."""

    def __init__(
        self,
        recorder: Recorder,
        readers: Readers,
        viewers: Viewers,
        metrics: HistoryMetrics,
        file: Path,
        token_file: Path | None,
    ) -> None:
        self._recorder, self._readers, self._viewers, self._metrics = recorder, readers, viewers, metrics
        self._file, self._token_file = file, token_file
        self._writes = 0
        self._reads: Counter[bytes] = Counter()
        app = application(most_body=MAX_BODY_BYTES, middlewares=[self._answered])
        app.router.add_post("/v1/records", self._record)
        app.router.add_get("/v1/jobs", self._list)
        app.router.add_get(_JOB, self._job)
        app.router.add_get(f"{_JOB}/series", self._series)
        app.router.add_get(f"{_JOB}/heat", self._heat)
        app.router.add_get(f"{_JOB}/evidence", self._evidence)
        app.router.add_get(f"{_JOB}/logs", self._logs)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._health)
        app.router.add_get("/metrics", Exposition(self._page).answer, allow_head=False)
        self._server = HttpServer(app)

    async def start(self, address: str, port: int) -> int:
        """Listens, and returns the port, which is a free one for 0. Raises OSError."""
        return (await self._server.start(address, port))[1]

    async def close(self) -> None:
        """Accepts nothing more, and ends with what is being answered."""
        await self._server.close()

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers an error as a Status."""
        try:
            return await handler(request)
        except web.HTTPException as error:
            status = error.status
            message = f"{request.method} {request.path}: {error.reason}."
            if status == 413:
                message = f"The body has more than {MAX_BODY_BYTES} bytes; send fewer records at once."
        except Refusal as error:
            status, message = error.status, str(error)
        except tuple(_ERRORS) as error:
            status, message = _ERRORS[type(error)], str(error)
        except sqlite3.Error as error:
            log.warning("%s can't be read: %s", self._file, error)
            status, message = 503, f"The history can't be read now: {error}."
        except Exception:
            log.exception("A request for %s failed by a fault of the history itself.", request.path)
            status, message = 500, "The history failed by a fault of its own, which its log describes."
        reason = REASONS.get(status, "BadRequest")
        self._metrics.refused.labels(reason=reason).inc()
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
        headers = {**_HEADERS, **({"Retry-After": "1"} if status in (429, 503) else {})}
        return web.json_response({**body, "code": status}, status=status, headers=headers)

    async def _record(self, request: web.Request) -> web.Response:
        self._require_writer(request)
        if self._writes >= MAX_WRITES:
            raise Refusal(503, f"{MAX_WRITES} batches are being written; send this one again.")
        self._writes += 1
        try:
            number = await self._recorder.record(await request.read())
        finally:
            self._writes -= 1
        return web.json_response({"kind": "Recorded", "records": number}, headers=_HEADERS)

    def _require_writer(self, request: web.Request) -> None:
        """Raises Refusal for who doesn't have the writer's token, which may be a new one at each request."""
        if self._token_file is None:
            raise Refusal(401, "This history has no writer: start it with --writer-token-file.")
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            log.error("The writer's token can't be read (%s: %s).", self._token_file, error.strerror)
            raise Refusal(503, "The writer's token can't be read; the history's log names the file.") from error
        given = _bearer(request, "Authorization")
        if not token or not hmac.compare_digest(given.encode(), token):
            raise Refusal(401, "That isn't the writer's token; give the operator the same --history-token-file.")

    async def _list(self, request: web.Request) -> web.Response:
        query = Query(request.query, "namespace", "name", "limit", "continue")
        namespace, name, before = query.namespace(), query.name(), query.before()
        limit = query.whole("limit", MAX_JOBS, 1, MAX_JOBS)
        return await self._read(
            request,
            [Access("list", namespace=namespace)],
            lambda answers: answers.jobs(namespace, name, limit=limit, before=before),
        )

    async def _job(self, request: web.Request) -> web.Response:
        return await self._read_job(request, Query(request.query, "uid"), Answers.job)

    async def _series(self, request: web.Request) -> web.Response:
        query = Query(request.query, "uid", "from", "to", "points")
        window, points = query.window(), query.points()
        return await self._read_job(
            request, query, lambda answers, *job: answers.series(*job, window=window, points=points)
        )

    async def _heat(self, request: web.Request) -> web.Response:
        query = Query(request.query, "uid", "from", "to", "columns", "figure")
        window, columns, figure = query.window(), query.columns(), query.figure()
        return await self._read_job(
            request, query, lambda answers, *job: answers.heat(*job, window=window, columns=columns, figure=figure)
        )

    async def _evidence(self, request: web.Request) -> web.Response:
        return await self._read_job(
            request, Query(request.query, "uid"), Answers.evidence, Access("get", "configmaps", "")
        )

    async def _logs(self, request: web.Request) -> web.Response:
        query = Query(request.query, "uid", "worker", "tail")
        worker, tail = query.worker(), query.tail()
        return await self._read_job(
            request,
            query,
            lambda answers, *job: answers.logs(*job, worker=worker, tail=tail),
            Access("get", "pods", "", subresource="log"),
        )

    async def _read_job(self, request: web.Request, query: Query, ask: Ask, *more: Access) -> web.Response:
        """Answers about one job to who may get it, and do `more` in its namespace."""
        namespace = require_namespace(request.match_info["namespace"])
        name, uid = require_job_name(request.match_info["name"]), query.uid()
        asked = [Access("get", namespace=namespace, name=name)]
        asked += [Access(each.verb, each.resource, each.group, namespace, "", each.subresource) for each in more]
        return await self._read(request, asked, lambda answers: ask(answers, namespace, name, uid))

    async def _read(
        self, request: web.Request, asked: list[Access], ask: Callable[[Answers], dict[str, Any]]
    ) -> web.Response:
        # The API server's proxy of Services keeps the usual header for itself.
        token = _bearer(request, "X-Trainmaster-Authorization") or _bearer(request, "Authorization")
        if not token:
            raise Refusal(401, "Say who you are: send your Kubernetes token as 'Authorization: Bearer …'.")
        viewer = hashlib.sha256(token.encode()).digest()
        if self._reads[viewer] >= MAX_OF_VIEWER:
            raise Refusal(429, f"{MAX_OF_VIEWER} of your requests are being answered; wait for one of them.")
        if self._reads.total() >= MAX_READS:
            raise Refusal(429, f"{MAX_READS} requests of all viewers are being answered; try again in a moment.")
        self._reads[viewer] += 1
        try:
            for access in asked:
                await self._viewers.require(token, access)
            body = await self._readers.read(ask)
        finally:
            self._reads[viewer] -= 1
            if not self._reads[viewer]:
                del self._reads[viewer]
        response = web.Response(body=body, content_type="application/json", headers=_HEADERS)
        if len(body) > _COMPRESSED_BYTES:
            response.enable_compression()
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _page(self) -> bytes:
        self._metrics.jobs.set(int(await self._readers.read(lambda answers: answers.count())))
        parts = (self._file.with_name(self._file.name + suffix) for suffix in ("", "-wal"))
        self._metrics.bytes.set(sum(part.stat().st_size for part in parts if part.exists()))
        return self._metrics.text()


def _bearer(request: web.Request, header: str) -> str:
    """Returns a header's bearer token; empty where there is none."""
    scheme, _, token = request.headers.get(header, "").partition(" ")
    # aiohttp keeps bytes that aren't UTF-8 as surrogates, which no token has.
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""
