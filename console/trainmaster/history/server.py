"""Runs the history and serves it over HTTP: receives the operator's records, and answers viewers.

Errors are Status objects as in Kubernetes. If a parameter is invalid, the error's message names it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from prometheus_client import generate_latest

from trainmaster.client.errors import InvalidRequest
from trainmaster.client.history.answers import (
    MOST_COLUMNS,
    MOST_CURVES,
    MOST_JOBS,
    MOST_LINES,
    MOST_METRICS,
    MOST_POINTS,
    HistoryAnswer,
)
from trainmaster.client.job import require_name
from trainmaster.client.permission import Access
from trainmaster.client.server import address_of
from trainmaster.history.answers import Answers, AnswerThreads
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.figures import HEAT_FIGURES
from trainmaster.history.recorder import REASONS, CannotRecord, HistoryMetrics, HistoryRecorder
from trainmaster.history.schema import UnusableHistory, files_of, locked
from trainmaster.history.settings import HistorySettings
from trainmaster.history.viewers import HistoryViewers, ViewerPlaces
from trainmaster.serving import (
    Handler,
    Refused,
    bearer_of,
    first_to_end,
    job_of,
    names_of,
    namespace_of,
    one_of,
    refused,
    require_known,
    uid_of,
    whole_of,
    window_of,
    write,
)
from trainmaster_operator.serving import Exposition, HttpServer, application
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import ProtocolError, shown

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 * 1024 * 1024
# Maximum number of batches of records in memory.
MAX_WRITES = 4
# Seconds after which sending is cancelled if the reader doesn't read.
SEND_SECONDS = 30.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JOB = "/v1/namespaces/{namespace}/jobs/{name}"
_PLACE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?):(\d{1,12})")
Ask = Callable[[Answers, str, str, str], HistoryAnswer]


class HistoryServer:
    """HistoryServer answers requests to a history, and `http` serves it. `viewers` decides who may read it."""

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
        app.router.add_get(f"{_JOB}/metrics", self._names, allow_head=False)
        app.router.add_get(f"{_JOB}/curves", self._curves, allow_head=False)
        app.router.add_get(f"{_JOB}/heat", self._heat, allow_head=False)
        app.router.add_get(f"{_JOB}/evidence", self._evidence, allow_head=False)
        app.router.add_get(f"{_JOB}/logs", self._logs, allow_head=False)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._health)
        app.router.add_get("/metrics", Exposition(self._page).answer, allow_head=False)
        self.http = HttpServer(app)

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Runs a handler. If it raises an error, answers with a Status object."""
        try:
            return await handler(request)
        except (CannotRecord, UnusableHistory) as error:
            found = Refused(503, str(error))
        except ProtocolError as error:
            found = Refused(400, str(error))
        except sqlite3.Error as error:
            log.warning("%s can't be read: %s", self._file, error)
            found = Refused(503, f"The history can't be read now: {error}.")
        except web.HTTPRequestEntityTooLarge:
            found = Refused(413, f"The body has more than {MAX_BODY_BYTES} bytes; send fewer records at once.")
        except Exception as error:
            found = refused(error, request)
        status, reason = found.status, REASONS.get(found.status, "BadRequest")
        self._metrics.refused.labels(reason=reason).inc()
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": found.sentence, "reason": reason}
        headers = {**_HEADERS, **({"Retry-After": "1"} if status in (429, 503) else {})}
        return web.json_response({**body, "code": status}, status=status, headers=headers)

    async def _record(self, request: web.Request) -> web.Response:
        self._require_writer(request)
        if self._writes >= MAX_WRITES:
            raise Refused(503, f"{MAX_WRITES} batches are being written; send this one again.")
        self._writes += 1
        try:
            number = await self._recorder.record(await request.read())
        finally:
            self._writes -= 1
        return web.json_response({"kind": "Recorded", "records": number}, headers=_HEADERS)

    def _require_writer(self, request: web.Request) -> None:
        """Raises Refused if a request lacks the writer's token. The token's file can be replaced at any time."""
        if self._token_file is None:
            raise Refused(401, "This history has no writer: start it with --writer-token-file.")
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            log.error("The writer's token can't be read (%s: %s).", self._token_file, error.strerror)
            raise Refused(503, "The writer's token can't be read; the history's log names the file.") from error
        given = bearer_of(request)
        if not token or not hmac.compare_digest(given.encode(), token):
            raise Refused(401, "That isn't the writer's token; give the operator the same --history-token-file.")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "namespace", "name", "limit", "continue")
        namespace, name, before = namespace_of(request) or "", request.query.get("name", ""), _before(request)
        if name:
            require_name(name)
        limit = whole_of(request, "limit", MOST_JOBS, least=1, most=MOST_JOBS) or MOST_JOBS
        return await self._read(
            request,
            [Access("list", namespace=namespace)],
            lambda answers: answers.jobs(namespace, name, limit=limit, before=before),
            is_long=False,
        )

    async def _job(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid")
        return await self._read_job(request, Answers.job, is_long=False)

    async def _series(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid", "from", "to", "points", "metrics")
        window, metrics = TimeWindow(*window_of(request)), names_of(request, "metrics", MOST_METRICS)
        points = whole_of(request, "points", 1000, least=1, most=MOST_POINTS) or 1
        return await self._read_job(
            request, lambda answers, *job: answers.series(*job, window=window, points=points, metrics=metrics)
        )

    async def _names(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid")
        return await self._read_job(request, Answers.names, is_long=False)

    async def _curves(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid", "from", "to", "points", "names")
        window, names = TimeWindow(*window_of(request)), names_of(request, "names", MOST_CURVES)
        points = whole_of(request, "points", 1000, least=1, most=MOST_POINTS) or 1
        return await self._read_job(
            request, lambda answers, *job: answers.curves(*job, window=window, points=points, names=names)
        )

    async def _heat(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid", "from", "to", "columns", "figure")
        window, figure = TimeWindow(*window_of(request)), one_of(request, "figure", HEAT_FIGURES)
        columns = whole_of(request, "columns", MOST_COLUMNS, least=1, most=MOST_COLUMNS) or 1
        return await self._read_job(
            request, lambda answers, *job: answers.heat(*job, window=window, columns=columns, figure=figure)
        )

    async def _evidence(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid")
        return await self._read_job(request, Answers.evidence, Access("get", "configmaps", ""))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        require_known(request, "uid", "worker", "tail")
        worker, tail = whole_of(request, "worker", most=MAX_INDEX), whole_of(request, "tail", most=MOST_LINES)
        return await self._read_job(
            request,
            lambda answers, *job: answers.logs(*job, worker=worker, tail=tail),
            Access("get", "pods", "", subresource="log"),
        )

    async def _read_job(
        self, request: web.Request, ask: Ask, *more: Access, is_long: bool = True
    ) -> web.StreamResponse:
        """Answers if the viewer may get the job and also has the rights `more` in its namespace."""
        (namespace, name), uid = job_of(request), uid_of(request) or ""
        asked = [Access("get", namespace=namespace, name=name), *(replace(each, namespace=namespace) for each in more)]
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
        token = bearer_of(request, "X-Trainmaster-Authorization") or bearer_of(request)
        if not token:
            raise Refused(401, "The request has no token: send your Kubernetes token as 'Authorization: Bearer …'.")
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

    async def _send(self, request: web.Request, viewer: bytes, body: tuple[bytes, bool]) -> web.StreamResponse:
        """Sends an answer. The request keeps its place until then, which limits the memory that slow readers use."""
        data, is_compressed = body
        encoding = {"Content-Encoding": "gzip"} if is_compressed else {}
        response = web.StreamResponse(headers={**_HEADERS, **encoding, "Vary": "Accept-Encoding"})
        response.content_type, response.content_length = "application/json", len(data)
        try:
            with self._places.sending(viewer, len(data)):
                await write(request, response, data, SEND_SECONDS, is_all=True)
        except ConnectionError:
            log.debug("The reader of %s went away.", request.path)
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _page(self) -> bytes:
        self._metrics.jobs.set(int((await self._readers.read(Answers.count))[0]))
        # The index of the write-ahead log isn't counted, because it is shared memory.
        self._metrics.bytes.set(sum(part.stat().st_size for part in files_of(self._file)[:2] if part.exists()))
        return generate_latest(self._metrics.registry)


def _before(request: web.Request) -> tuple[float, int] | None:
    """Returns the position at which the previous list ended. Raises InvalidRequest."""
    given = request.query.get("continue", "")
    found = _PLACE.fullmatch(given)
    if given and found is None:
        raise InvalidRequest(f"continue: {shown(given)} is not from a list's answer; give the one of the list before.")
    return None if found is None else (float(found[1]), int(found[2]))


async def run_history(settings: HistorySettings, stop: asyncio.Event) -> None:
    """Serves the history until `stop` is set. Raises UnusableHistory, NoCluster and InvalidRequest."""
    file = Path(settings.file)
    with locked(file):
        viewers = HistoryViewers(address_of(settings.kubeconfig, settings.context))
        metrics, readers = HistoryMetrics(), AnswerThreads(file)
        metrics.most_bytes.set(settings.max_bytes)
        recorder = HistoryRecorder(settings, metrics, readers.reopen)
        token_file = None if settings.writer_token_file is None else Path(settings.writer_token_file)
        server = HistoryServer(recorder, readers, viewers, metrics, file, token_file)
        await recorder.open()
        try:
            try:
                _, port = await server.http.start(settings.address, settings.port)
            except OSError as error:
                where = f"{settings.address} port {settings.port} can't be listened on"
                raise InvalidRequest(f"{where}: {error.strerror}; give --address and --port.") from error
            log.info("The history in %s is served on port %d.", file, port)
            if token_file is None:
                log.warning("Nothing is recorded, only read: there is no --writer-token-file.")
            elif not token_file.is_file():
                log.warning("Nothing is recorded until the writer's token is in %s, which doesn't exist.", token_file)
            # Only a bug ends the maintenance. This raises its error, so that the process is restarted.
            await first_to_end(stop.wait(), recorder.maintain())
        finally:
            await server.http.close()
            await readers.close()
            await viewers.close()
            await recorder.close()
