"""Defines the routes and the live answers, and serves the page's files, which are read once and kept in memory."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from trainmaster.client.job import TrainingJob
from trainmaster.client.log_reader import Selection
from trainmaster.client.permission import Access, seeing
from trainmaster.client.server import Server
from trainmaster.client.view import FailureView
from trainmaster.dashboard.figures import Figures
from trainmaster.dashboard.guards import Launch, add_headers, body_of, guard, viewer_of
from trainmaster.dashboard.job_answers import JobAnswers
from trainmaster.dashboard.job_page import JobPage
from trainmaster.dashboard.logs import send_logs, send_recorded
from trainmaster.dashboard.objects import nodes_of
from trainmaster.dashboard.scopes import RECHECK_SECONDS, Scopes
from trainmaster.dashboard.sessions import HistoryOf, Viewer, Viewers
from trainmaster.dashboard.streams import EventStream, answer, streamed
from trainmaster.dashboard.tenants import MOST_STREAMS_IN_ALL
from trainmaster.serving import Refused, first_to_end, job_of, namespace_of, uid_of, whole_of
from trainmaster_operator import __version__
from trainmaster_operator.serving import HttpServer, application
from trainmaster_operator.serving.connection import MAX_CONNECTIONS, Places
from trainmaster_operator.wire.values import mapping, shown

Mode = Literal["cluster", "laptop"]

MOST_BODY = 65_536
PAGE = Path(__file__).with_name("page")
INDEX = "index.html"
# Compressing smaller files gains nothing.
COMPRESSED_BYTES = 1_000
# Content types by suffix. Files with other suffixes are plain text.
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
# Number of each worker's last log lines that a page shows at first: default and maximum.
TAIL, MOST_TAIL = 1_000, 20_000
SWEEP_SECONDS = 60.0


@dataclass(frozen=True)
class DashboardSettings:
    """DashboardSettings are the user's choices. Only a laptop's `server` contains credentials: the kubeconfig's."""

    mode: Mode
    server: Server
    namespace: str = ""
    page: Path = PAGE
    recheck_seconds: float = RECHECK_SECONDS


class Dashboard:
    """Dashboard is the state that requests share. Create it in the event loop that runs it."""

    def __init__(self, settings: DashboardSettings, history_of: HistoryOf = lambda _: None) -> None:
        self._settings = settings
        self.launch = Launch() if settings.mode == "laptop" else None
        self._viewers = Viewers(settings.server, history_of)
        self._scopes = Scopes(settings.recheck_seconds)
        self._figures = Figures()
        self._files = read_files(settings.page)

    def application(self) -> web.Application:
        """Returns the aiohttp application."""
        app = application(most_body=MOST_BODY, middlewares=[guard(self._viewers, self.launch)])
        app.on_response_prepare.append(add_headers)
        app.add_routes(
            [
                web.get("/healthz", self._healthy),
                web.get("/readyz", self._healthy),
                web.post("/api/launch", self._launched),
                web.get("/api/viewer", self._viewer),
                web.get("/api/jobs", self._jobs, allow_head=False),
                web.get("/api/history/jobs", self._recorded_jobs),
                web.get("/api/nodes", self._nodes),
                web.get("/api/jobs/{namespace}/{name}", self._job, allow_head=False),
                web.get("/api/jobs/{namespace}/{name}/logs", self._logs, allow_head=False),
                *JobAnswers(self._figures).routes(),
                web.get("/page/{path:.+}", self._file),
                *(web.get(path, self._file) for path in ("/", "/jobs/{namespace}/{name}", "/nodes")),
            ]
        )
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _: web.Application) -> AsyncGenerator[None, None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                self._viewers.forget_idle()

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await self._scopes.close()
        await self._viewers.close()

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _launched(self, request: web.Request) -> web.Response:
        key = None if self.launch is None else self.launch.exchange((await body_of(request)).get("code"))
        if key is None:
            raise Refused(
                403, "This address was used already, or is too old: open the page again with `kubectl dtj open`."
            )
        return answer({"key": key})

    async def _viewer(self, request: web.Request) -> web.Response:
        viewer, settings = viewer_of(request), self._settings
        return answer(
            {
                "mode": settings.mode,
                "user": viewer.user,
                "cluster": settings.server.address,
                "namespace": settings.namespace,
                "allNamespaces": await viewer.access.allows(*seeing(None)),
                "history": await viewer.has_history(),
                "version": __version__,
            }
        )

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        viewer, namespace = viewer_of(request), namespace_of(request)
        with viewer.streaming():
            # Checked before the stream begins, so that viewers without the right get an HTTP error.
            await viewer.access.require(*seeing(namespace))
            return await streamed(request, lambda stream: self._scopes.send_to(stream, viewer, namespace))

    async def _recorded_jobs(self, request: web.Request) -> web.Response:
        viewer, namespace = viewer_of(request), namespace_of(request)
        found = await viewer.recorded_jobs(namespace)
        for job in found["items"]:
            job["failure"] = FailureView(mapping(job["lastFailure"])).last_line or None
        return answer({"items": found["items"]})

    async def _nodes(self, request: web.Request) -> web.Response:
        viewer, namespace = viewer_of(request), namespace_of(request)

        async def read() -> web.Response:
            async with self._scopes.joined(viewer, namespace) as scope:
                await scope.loaded(viewer)
                blame = list(scope.board.blame.values())
            return answer(await nodes_of(viewer.transport, namespace, blame))

        return await viewer.tenant.heavy(read)

    async def _job(self, request: web.Request) -> web.StreamResponse:
        viewer, (namespace, name), uid = viewer_of(request), job_of(request), uid_of(request)
        page = JobPage(viewer, self._figures, namespace, name, uid)
        seeing_it = Access("get", namespace=namespace, name=name)
        with viewer.streaming():
            found = await viewer.look_up(namespace, name, uid)
            if isinstance(found, TrainingJob):
                await viewer.access.require(Access("watch", namespace=namespace, name=name))
            else:
                page.show_recorded(found)
            # This frees the whole object; a page keeps only the values that it shows.
            del found
            return await streamed(request, lambda stream: self._while_allowed(viewer, seeing_it, page.send_to(stream)))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        viewer, (namespace, name), uid = viewer_of(request), job_of(request), uid_of(request)
        one_of_all = (whole_of(request, given) for given in ("worker", "rank"))
        workers, ranks = (None if one is None else frozenset([one]) for one in one_of_all)
        tail = whole_of(request, "tail", TAIL, most=MOST_TAIL) or 0
        wanted = Selection(workers, ranks, whole_of(request, "attempt"), tail=tail)
        follow = request.query.get("follow") == "1"
        reading = Access("get", "pods", "", namespace=namespace, subresource="log")
        with viewer.streaming():
            found = await viewer.look_up(namespace, name, uid)
            job = found if isinstance(found, TrainingJob) else None
            del found
            await viewer.access.require(reading, Access("list", "pods", "", namespace=namespace))

            async def send(stream: EventStream) -> None:
                if job is None:
                    await send_recorded(stream, viewer, namespace, name, uid, wanted)
                    return
                lines = send_logs(stream, viewer, job, wanted, follow=follow)
                await self._while_allowed(viewer, reading, lines)

            return await streamed(request, send)

    async def _while_allowed(self, viewer: Viewer, access: Access, sending: Any) -> None:
        """Runs `sending` to its end. Raises NotAllowed once the viewer loses the right."""
        recheck = viewer.access.until_refused(access, seconds=self._settings.recheck_seconds)
        await first_to_end(sending, recheck)

    async def _file(self, request: web.Request) -> web.Response:
        path = request.match_info.get("path", INDEX)
        found = self._files.get(path)
        if found is None:
            raise Refused(404, f"This installation has no file {shown(path)} in dashboard/page.")
        return found.answer(request)


@asynccontextmanager
async def serving(
    dashboard: Dashboard, host: str, port: int, *, tls: Any = None
) -> AsyncGenerator[tuple[str, int], None]:
    """Serves the dashboard, and yields its address and port. Raises OSError if it can't listen there."""
    # The limit has room for all live pages, so that a new connection never closes one of them.
    places = Places(MOST_STREAMS_IN_ALL + MAX_CONNECTIONS)
    server = HttpServer(dashboard.application(), cancels=True, places=places)
    address = await server.start(host, port, tls=tls)
    try:
        yield address
    finally:
        await server.close()


@dataclass(frozen=True)
class StaticFile:
    """StaticFile is one of the page's files, kept in memory."""

    content_type: str
    content: bytes
    # None if compressing gains nothing.
    compressed: bytes | None
    etag: str

    def answer(self, request: web.Request) -> web.Response:
        """Returns the file, or status 304 if the browser's copy is current."""
        # A browser caches the file, and checks each time whether it has changed.
        headers = {"ETag": f'"{self.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        known = request.if_none_match or ()
        if any(each.value == self.etag for each in known):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = self.content_type
        body = self.content
        if self.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"], body = "gzip", self.compressed
        return web.Response(body=body, headers=headers)


def read_files(folder: Path = PAGE) -> dict[str, StaticFile]:
    """Returns a folder's files by their paths relative to the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    compressed = gzip.compress(content, 9, mtime=0) if len(content) >= COMPRESSED_BYTES else None
    etag = hashlib.sha256(content).hexdigest()[:32]
    return StaticFile(f"{_TYPES.get(path.suffix, 'text/plain')}; charset=utf-8", content, compressed, etag)
