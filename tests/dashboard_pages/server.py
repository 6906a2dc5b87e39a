"""Answers as `trainmaster dashboard` does, with data that `fleet` and `survivor` invent. Tests change it while
it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.dashboard_pages import survivor
from tests.dashboard_pages.fleet import HOSTILE, Fleet, empty_row, stamp

PAGE = Path(__file__).resolve().parents[2] / "console/trainmaster/dashboard/page"
MANIFEST = """apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
  name: {name}
spec:
  workers: 4
"""
ABOUT = ("why", "metrics", "curves", "heat", "evidence", "manifest", "export")
# The content type sent to a browser, by a file name's ending.
SENT = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WHY = {
    "namespace": "vision",
    "name": "vit-huge-waits",
    "phase": "Pending",
    "cause": "InsufficientResources",
    "sentence": "vision/vit-huge-waits is Pending: no node has 8 free GPUs for worker 0; 12 of 14 nodes have fewer, "
    "2 have a taint.",
    "certainty": "certain",
    "evidence": ["0/14 nodes are available: 12 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint", HOSTILE],
    "next": [
        {"text": "See who has the GPUs", "command": "kubectl dtj list -A --phase Running"},
        {"text": "Or ask for fewer", "command": "kubectl dtj scale vit-huge-waits --workers 2 -n vision"},
    ],
    "others": ["The queue gpu is paused since 10:02."],
    "unread": [],
}
Events = AsyncIterator[tuple[str, Any]]


class FakeDashboard:
    """Serves the page and its requests. `token` is the token that a viewer must send; None requires none.

    `batch` jobs change every `seconds`; `cut` ends all streams at once, `down` refuses requests meanwhile, and
    `deleted` deletes the job on the page.
    """

    def __init__(self, jobs: int = 1_000, *, token: str | None = None, seconds: float = 1.0, batch: int = 60) -> None:
        self.token, self.seconds, self.batch = token, seconds, batch
        self.born = time.time() - survivor.AGE
        self.fleet = Fleet(jobs, time.time())
        self.posted: list[tuple[str, str]] = []
        # The jobs that the list loses with its next change.
        self.leaving: list[str] = []
        self.down = self.deleted = False
        # By uid, events of a job's page that differ from the survivor's, and other fields of its `job` event.
        self.pages: dict[str, dict[str, Any]] = {}
        self.all_namespaces = self.history = True
        self.cutting = asyncio.Event()
        self.codes = {"once"}
        waits = "is number 1 of 3 in the queue gpu; it needs 32 GPUs, and 24 are free"
        self.add(
            empty_row("uid-waits", "vision", "vit-huge-waits", "Pending", time.time() - 400)
            | {"queue": "gpu", "waits": waits}
        )
        self.add(survivor.row(self.born, time.time()))

    def add(self, row: dict[str, Any]) -> None:
        """Adds a job, or replaces the one with its uid."""
        self.fleet.rows[row["uid"]] = row

    def cut(self) -> None:
        """Ends all streams."""
        self.cutting.set()
        self.cutting = asyncio.Event()

    def app(self) -> web.Application:
        """Returns the server's application."""
        app = web.Application(middlewares=[self.guard])
        job = "/api/jobs/{namespace}/{name}"
        app.add_routes([
            *(web.get(path, page) for path in ("/", "/nodes", "/jobs/{namespace}/{name}", "/nowhere")),
            web.get("/page/{path:.+}", page_file),
            web.post("/api/launch", self.launch),
            web.get("/api/viewer", self.viewer),
            web.get("/api/jobs", self.jobs),
            web.get("/api/history/jobs", self.recorded),
            web.get("/api/nodes", nodes),
            web.get("/api/compare", self.compare),
            web.get(job, self.job),
            *(web.get(f"{job}/{name}", self.about_job) for name in ABOUT),
            web.get(f"{job}/logs", self.logs),
            *(web.post(f"{job}/{name}", self.act) for name in ("suspend", "resume", "restart", "stacks")),
        ])  # fmt: skip
        return app

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuses viewers without a token, and adds headers to the answers."""
        if request.path.startswith("/api/") and request.path != "/api/launch":
            if self.down:
                return web.json_response({"sentence": "The dashboard is being restarted."}, status=503, headers=HEADERS)
            if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
                sentence = (
                    "The token is not one of this cluster."
                    if "Authorization" in request.headers
                    else "Say who you are."
                )
                return web.json_response({"sentence": sentence}, status=401, headers=HEADERS)
        answer = await handler(request)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def launch(self, request: web.Request) -> web.Response:
        """Exchanges a one-time code for the key."""
        code = (await request.json()).get("code")
        if code not in self.codes:
            return web.json_response({"sentence": "This link was used already, or is older than a minute."}, status=401)
        self.codes.discard(code)
        return web.json_response({"key": self.token or "key"})

    async def viewer(self, _: web.Request) -> web.Response:
        """Names the viewer."""
        return web.json_response({
            "mode": "cluster", "user": "alice@example.com", "cluster": "https://k8s.example.com:6443",
            "namespace": "research", "allNamespaces": self.all_namespaces, "history": self.history, "version": "0.1.0",
        })  # fmt: skip

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        """Streams the list."""

        async def events() -> Events:
            only = request.query.get("namespace")
            rows = [row for row in self.fleet.rows.values() if only in (None, row["namespace"])]
            yield "jobs", {"at": stamp(time.time()), "jobs": rows}
            while only is not None:
                await asyncio.sleep(self.seconds)
                yield "changed", {"at": stamp(time.time()), "rows": [], "gone": []}
            while True:
                await asyncio.sleep(self.seconds)
                row = survivor.row(self.born, time.time())
                self.fleet.rows[survivor.UID].update(row)
                leaving, self.leaving = self.leaving, []
                yield (
                    "changed",
                    {"at": stamp(time.time()), "rows": [*self.fleet.step(self.batch), row], "gone": leaving},
                )

        return await self.stream(request, events())

    async def recorded(self, _: web.Request) -> web.Response:
        """Lists the jobs in the history."""
        if not self.history:
            return web.json_response({"sentence": "There is no history here."}, status=404)
        now = time.time()
        chance = random.Random(3)
        items = [recorded(f"gone-{number}", now - 86_400 * chance.uniform(2, 30), now) for number in range(40)]
        return web.json_response({"items": [recorded("whisper-deleted", now - 90_000, now), *items]})

    def row_of(self, request: web.Request) -> dict[str, Any]:
        """Returns the row of the job that a request names."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        for row in self.fleet.rows.values():
            if (row["namespace"], row["name"]) == (namespace, name):
                return row
        if name.startswith(("whisper-deleted", "gone-")):
            job = recorded(name, self.born, time.time())
            return job | {
                "running": None,
                "desired": None,
                "completedAt": job["endedAt"],
                "failure": None,
                "suspended": False,
            }
        raise web.HTTPNotFound(
            text=json.dumps({"sentence": f"There is no job {name} in {namespace}."}), content_type="application/json"
        )

    async def job(self, request: web.Request) -> web.StreamResponse:
        """Streams one job."""
        row = self.row_of(request)
        deleted = bool(row.get("deletedAt"))
        waits = row["phase"] in ("Pending", "Suspended", "Starting")

        async def events() -> Events:
            spec = {
                "workers": survivor.RANKS // survivor.EACH,
                "processesPerWorker": survivor.EACH,
                "failurePolicy": {"maxRestarts": 6},
            }
            while True:
                now = time.time()
                special = self.pages.get(row["uid"], {})
                shown = (
                    row
                    if waits or deleted or special
                    else {
                        **survivor.row(self.born, now),
                        **{key: row[key] for key in ("uid", "name", "namespace", "phase")},
                    }
                )
                yield (
                    "job",
                    {
                        "row": shown,
                        "status": {"timeSpent": {"schedule": 0.3, "until": row["createdAt"]}}
                        if waits
                        else survivor.status(self.born, now),
                        "spec": spec,
                        "live": not deleted,
                        "warning": survivor.WARNING,
                        "resumes": survivor.RESUMES,
                        "mayChange": True,
                        **special.get("job", {}),
                    },
                )
                if not waits:
                    yield "pods", [] if deleted else survivor.pods()
                    yield "attempts", special.get("attempts") or survivor.attempts(self.born)
                    ranks = [
                        {"rank": rank, "worker": rank // survivor.EACH, **survivor.figures(rank, now - self.born)}
                        for rank in range(survivor.RANKS)
                    ]
                    if not deleted:
                        yield "ranks", {"at": now, "attempt": 4, "ranks": ranks, "silent": {}, "why": None}
                    yield "events", survivor.events(self.born)
                await asyncio.sleep(self.seconds)
                if self.deleted:
                    self.fleet.rows.pop(row["uid"], None)
                    yield "gone", {}
                    self.cut()

        return await self.stream(request, events())

    async def about_job(self, request: web.Request) -> web.Response:
        """Answers a request about one job."""
        row = self.row_of(request)
        now = time.time()
        match request.path.rpartition("/")[2]:
            case "why":
                return web.json_response(WHY | {key: row[key] for key in ("namespace", "name", "phase")})
            case "metrics":
                return web.json_response(survivor.metrics())
            case "curves":
                since, points = float(request.query.get("from", 0)), int(request.query.get("points", 1_000))
                names = request.query["names"].split(",")
                return web.json_response(survivor.curves(self.born, now, names, since, points))
            case "heat":
                return web.json_response(
                    survivor.heat(self.born, now, request.query["figure"], int(request.query["columns"]))
                )
            case "evidence":
                return web.json_response({"items": survivor.evidence(self.born)})
            case "manifest":
                return web.Response(
                    text=MANIFEST.format(name=row["name"]),
                    content_type="text/yaml",
                )
            case _:
                return web.Response(text="at,step,loss\n1,2,3\n", content_type="text/csv")

    async def compare(self, request: web.Request) -> web.Response:
        """Compares jobs by a metric."""
        jobs, query = request.query.getall("job"), request.query
        found = survivor.compare(self.born, time.time(), query["metric"], query["x"], jobs, int(query["points"]))
        return web.json_response(found)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Streams lines."""
        rank, worker = request.query.get("rank"), request.query.get("worker")
        ranks = [
            one
            for one in range(survivor.RANKS)
            if rank in (None, str(one)) and worker in (None, str(one // survivor.EACH))
        ]

        async def events() -> Events:
            now = time.time()
            yield (
                "lines",
                [survivor.log_line(now - 400 + step, one, 14_000 + step) for step in range(400) for one in ranks][
                    -int(request.query["tail"]) :
                ],
            )
            step = 14_400
            while True:
                await asyncio.sleep(self.seconds)
                step += 1
                yield "lines", [survivor.log_line(time.time(), one, step) for one in ranks]

        return await self.stream(request, events())

    async def act(self, request: web.Request) -> web.Response:
        """Does what a button requests."""
        what, name = request.path.rpartition("/")[2], request.match_info["name"]
        await request.json()
        self.posted.append((what, name))
        if what == "stacks":
            ranks = {
                str(rank): {
                    "step": 14_401,
                    "section": "train",
                    "silentSeconds": 0.4,
                    "text": survivor.READS if rank == survivor.STRAGGLER else survivor.WAITS,
                }
                for rank in range(survivor.RANKS)
            }
            return web.json_response(
                {
                    "attempt": 4,
                    "collectedAt": stamp(time.time()),
                    "ranks": ranks,
                    "unanswered": [],
                    "leftOut": 0,
                    "problem": "",
                    "withheld": False,
                }
            )
        return web.json_response({"sentence": f"{name}: to be {'suspended' if what == 'suspend' else what + 'ed'}"})

    async def stream(self, request: web.Request, events: Events) -> web.StreamResponse:
        """Sends events until the viewer leaves, or until `cut`."""
        answer = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        cutting = asyncio.create_task(self.cutting.wait())
        try:
            while True:
                following = asyncio.ensure_future(anext(events))
                await asyncio.wait((cutting, following), return_when=asyncio.FIRST_COMPLETED)
                if cutting.done():
                    following.cancel()
                    return answer
                name, data = following.result()
                await answer.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        except (ConnectionError, asyncio.CancelledError):
            return answer
        finally:
            cutting.cancel()


def recorded(name: str, created: float, now: float) -> dict[str, Any]:
    """Returns a RecordedJob that was deleted."""
    return {
        "uid": f"uid-{name}", "namespace": "speech", "name": name, "phase": "Succeeded", "createdAt": stamp(created),
        "startedAt": stamp(created + 20), "endedAt": stamp(created + 9_000), "deletedAt": stamp(now - 3_000),
        "attempt": 4, "restarts": 2, "disruptions": 1, "step": 25_000, "totalSteps": 25_000, "loss": 1.92,
        "goodput": 0.91, "lastFailure": survivor.FAILURES[1], "result": None,
        "failure": survivor.FAILURES[1]["message"],
    }  # fmt: skip


async def nodes(_: web.Request) -> web.Response:
    """Lists the blamed nodes."""
    mine = {"namespace": survivor.NAMESPACE, "name": survivor.NAME}
    blamed = {"gpu-node-07": 3, "gpu-node-04": 1, "gpu-node-11": 1}
    found = []
    for number in range(1, 17):
        name = f"gpu-node-{number:02}"
        failures = blamed.get(name, 0)
        found.append({
            "name": name, "failures": failures, "avoidedBy": [mine] if failures > 2 else [],
            "blamedBy": [{**mine, "failures": failures}] if failures else [], "ready": name != "gpu-node-11", "gpus": 8,
            "pods": [
                {"namespace": survivor.NAMESPACE, "job": survivor.NAME, "worker": worker}
                for worker, node in survivor.NODES.items()
                if node == name
            ],
        })  # fmt: skip
    return web.json_response({"nodes": found, "why": None})


async def page(_: web.Request) -> web.FileResponse:
    """Answers with the page, whatever its view."""
    return web.FileResponse(PAGE / "index.html")


async def page_file(request: web.Request) -> web.Response:
    """Answers with a file of the page, which the browser may keep while its ETag is unchanged."""
    path = (PAGE / request.match_info["path"]).resolve()
    if PAGE not in path.parents or path.suffix not in SENT or not path.is_file():
        raise web.HTTPNotFound
    content = path.read_bytes()
    answer = web.Response(body=content, content_type=SENT[path.suffix], charset="utf-8")
    answer.headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return answer
