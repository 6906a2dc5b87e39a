"""The plain answers on one job: why, figures over time, evidence, manifest, and the few things that a viewer may do."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from trainmaster.client.async_jobs import AsyncJobClient
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.errors import ClientError, JobNotFound
from trainmaster.client.gathering import gather
from trainmaster.client.history import HistoryReader
from trainmaster.client.job import TrainingJob, collection_path
from trainmaster.client.permission import Access
from trainmaster.dashboard.guards import body_of, job_of, one_of, seconds_of, uid_of, viewer_of, whole_of
from trainmaster.dashboard.manifest import manifest_of, too_large
from trainmaster.dashboard.reading import FromThread
from trainmaster.dashboard.seen import RANK_FIGURES, SERIES, Seen
from trainmaster.dashboard.shapes import MANIFEST
from trainmaster.dashboard.streams import answer
from trainmaster.dashboard.viewers import Viewer, replaced
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.wire.values import loads, mapping

T = TypeVar("T")

# Threads of heavy answers: as many as are made at once, and a few of those who went before theirs was done.
THREADS = 4
MOST_POINTS, MOST_COLUMNS = 5_000, 1_000


class JobAnswers:
    """JobAnswers has the handlers."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._diagnoses = ThreadPoolExecutor(THREADS, thread_name_prefix="diagnosis")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="heavy")

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes."""
        base = "/api/jobs/{namespace}/{name}"
        return [
            web.get(f"{base}/why", self.why),
            web.get(f"{base}/series", self.series),
            web.get(f"{base}/heat", self.heat),
            web.get(f"{base}/export", self.export),
            web.get(f"{base}/evidence", self.evidence),
            web.get(f"{base}/manifest", self.manifest),
            web.post(f"{base}/stacks", self.stacks),
            web.post(f"{base}/suspend", self.suspend),
            web.post(f"{base}/resume", self.resume),
            web.post(f"{base}/restart", self.restart),
        ]

    async def why(self, request: web.Request) -> web.Response:
        """Answers why the job is as it is."""
        viewer = viewer_of(request)

        async def read() -> web.Response:
            job = await _living(request)
            transport = FromThread(viewer.transport.for_diagnosis(), asyncio.get_running_loop())
            # Who goes before it is done leaves their thread at work, so that there are threads of its own for it.
            diagnosis = await transport.loop.run_in_executor(self._diagnoses, lambda: diagnose(gather(transport, job)))
            return answer(diagnosis.to_json())

        return await viewer.party.heavy(read)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def series(self, request: web.Request) -> web.Response:
        """Answers with curves."""

        async def read() -> web.Response:
            return answer(await self._series(request))

        return await viewer_of(request).party.heavy(read)

    async def heat(self, request: web.Request) -> web.Response:
        """Answers with a figure of each rank over time."""
        figure = one_of(request, "figure", tuple(RANK_FIGURES))
        columns = whole_of(request, "columns", 240, most=MOST_COLUMNS) or 1
        since, until = seconds_of(request, "from"), seconds_of(request, "to")

        async def recorded(history: HistoryReader, namespace: str, name: str, uid: str | None) -> Mapping[str, Any]:
            return await history.heat(
                namespace, name, uid=uid, since=since, until=until, columns=columns, figure=figure
            )

        async def read() -> web.Response:
            found = await self._recorded(request, recorded)
            if found is None:
                found = self._seen.heat(await self._seen_uid(request), since, until, columns, figure)
            return await self._in_thread(lambda: answer(found))

        return await viewer_of(request).party.heavy(read)

    async def export(self, request: web.Request) -> web.Response:
        """Answers with the curves as a file."""
        _, name = job_of(request)
        kind = one_of(request, "format", ("csv", "json"))
        found = await viewer_of(request).party.heavy(lambda: self._series(request))
        headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
        if kind == "json":
            return answer(found, **headers)
        return web.Response(text=_csv(found), content_type="text/csv", headers=headers)

    async def evidence(self, request: web.Request) -> web.Response:
        """Answers with what was kept of attempts that failed."""
        namespace, name = job_of(request)
        viewer, uid = viewer_of(request), uid_of(request)

        async def read() -> web.Response:
            if isinstance(await viewer.look_up(namespace, name, uid), TrainingJob):
                kept = await AsyncJobClient(namespace, transport=viewer.transport).evidence(name)
                return await self._in_thread(lambda: answer({"items": [loads(one.to_json()) for one in kept]}))
            assert viewer.history is not None
            found = await viewer.history.evidence(namespace, name, uid=uid)
            return answer({"items": found.get("items") or []})

        return await viewer.party.heavy(read)

    async def manifest(self, request: web.Request) -> web.Response:
        """Answers with the job as its author wrote it, and as others completed it."""
        namespace, name = job_of(request)
        viewer = viewer_of(request)

        async def read() -> str:
            raw = await _written(viewer, namespace, name, uid_of(request))
            return await self._in_thread(lambda: manifest_of(raw, name))

        return web.Response(text=await viewer.party.heavy(read), content_type="text/yaml")

    async def stacks(self, request: web.Request) -> web.Response:
        """Asks all ranks for their stacks."""
        await body_of(request)
        job = await _living(request)
        client = AsyncJobClient(job.namespace, transport=viewer_of(request).transport)
        found = await viewer_of(request).party.heavy(lambda: client.stacks(job.name))
        return answer(
            {
                "attempt": found.attempt,
                "collectedAt": found.collected_at,
                "ranks": {str(rank): state for rank, state in sorted(found.ranks.items())},
                "unanswered": list(found.unanswered),
                "leftOut": found.left_out,
                "problem": found.problem,
                "withheld": found.withheld,
            }
        )

    async def suspend(self, request: web.Request) -> web.Response:
        """Suspends the job."""
        return await self._do(request, AsyncJobClient.suspend, "is to be suspended: its ranks save a checkpoint first")

    async def resume(self, request: web.Request) -> web.Response:
        """Resumes the job."""
        return await self._do(request, AsyncJobClient.resume, "is to go on from its checkpoint")

    async def restart(self, request: web.Request) -> web.Response:
        """Restarts the job's ranks."""
        return await self._do(request, AsyncJobClient.restart, "is to be restarted: its ranks save a checkpoint first")

    async def _do(
        self, request: web.Request, act: Callable[[AsyncJobClient, str], Awaitable[TrainingJob]], said: str
    ) -> web.Response:
        await body_of(request)
        job = await _living(request)
        await act(AsyncJobClient(job.namespace, transport=viewer_of(request).transport), job.name)
        return answer({"sentence": f"Job {job.name} {said}."})

    async def _series(self, request: web.Request) -> Mapping[str, Any]:
        points = whole_of(request, "points", 1_000, most=MOST_POINTS) or 1
        since, until = seconds_of(request, "from"), seconds_of(request, "to")

        async def recorded(history: HistoryReader, namespace: str, name: str, uid: str | None) -> Mapping[str, Any]:
            return await history.series(namespace, name, uid=uid, since=since, until=until, points=points)

        found = await self._recorded(request, recorded)
        return self._seen.series(await self._seen_uid(request), since, until, points) if found is None else found

    async def _recorded(
        self, request: web.Request, read: Callable[[HistoryReader, str, str, str | None], Awaitable[Mapping[str, Any]]]
    ) -> Mapping[str, Any] | None:
        """Returns what the history has; None where it has nothing for the viewer: then what was seen is shown."""
        namespace, name = job_of(request)
        viewer, uid = viewer_of(request), uid_of(request)
        if viewer.history is None:
            return None
        try:
            return await read(viewer.history, namespace, name, uid)
        except ClientError:
            return None

    async def _seen_uid(self, request: web.Request) -> str:
        """Returns the uid of a job whose ranks the viewer may see: what was seen came through `pods/proxy`."""
        job = await _living(request)
        await viewer_of(request).access.require(Access("get", "pods", "", namespace=job.namespace, subresource="proxy"))
        return job.uid


async def _written(viewer: Viewer, namespace: str, name: str, uid: str | None) -> Mapping[str, Any]:
    """Returns a job with its whole spec, as the history has it where it is gone. Raises ClientError, Refused."""
    missing: JobNotFound | None = None
    try:
        found = await viewer.transport.trimmed(f"{collection_path(namespace)}/{name}", MANIFEST)
        metadata = mapping(found.get("metadata"))
        if uid in (None, metadata.get("uid")):
            if LEFT_OUT in found or LEFT_OUT in metadata:
                raise too_large(name)
            return found
        missing = replaced(name)
    except JobNotFound as error:
        missing = error
    if viewer.history is None:
        raise missing
    raw = mapping((await viewer.history.job(namespace, name, uid=uid)).get("job"))
    if "spec" not in raw:
        raise too_large(name)
    return raw


async def _living(request: web.Request) -> TrainingJob:
    """Returns a job that is there. Raises JobNotFound where another one has its name than the page shows."""
    (namespace, name), uid = job_of(request), uid_of(request)
    job = await AsyncJobClient(namespace, transport=viewer_of(request).transport).get(name)
    if uid not in (None, job.uid):
        raise replaced(name)
    return job


def _csv(series: Mapping[str, Any]) -> str:
    columns = {name: values for name in ("at", "attempt", *SERIES) if isinstance(values := series.get(name), list)}
    spent = mapping(series.get("timeSpent"))
    columns |= {f"timeSpent.{name}": values for name, values in spent.items() if isinstance(values, list)}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=False))
    return text.getvalue()
