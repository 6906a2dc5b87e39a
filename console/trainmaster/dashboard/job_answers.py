"""Answers requests about one job: its diagnosis, figures over time, evidence, manifest, and a viewer's actions."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import yaml
from aiohttp import web

from trainmaster.client.async_jobs import AsyncJobClient
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.errors import ClientError, InvalidRequest
from trainmaster.client.gathering import gather
from trainmaster.client.history.answers import MOST_CURVES, columns_of
from trainmaster.client.history.reading import FIGURES
from trainmaster.client.job import TrainingJob, collection_path
from trainmaster.client.permission import Access
from trainmaster.dashboard.comparing import AXES, ComparedJob, compared_jobs
from trainmaster.dashboard.figures import Figures
from trainmaster.dashboard.guards import body_of, viewer_of
from trainmaster.dashboard.sessions import Viewer, replaced
from trainmaster.dashboard.shapes import MANIFEST
from trainmaster.dashboard.streams import answer
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.names import BUILT_IN, unit_of
from trainmaster.serving import (
    MAX_SENTENCE,
    Handler,
    Refused,
    job_of,
    names_of,
    one_of,
    require_known,
    uid_of,
    whole_of,
    window_of,
)
from trainmaster_operator.api.limits import MAX_NESTING
from trainmaster_operator.api.printable import yaml_escapes
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.wire.values import loads, mapping

T = TypeVar("T")
# Functions that ask the history, and the dashboard's own figures of a job with this uid.
Recorded = Callable[..., Awaitable[Mapping[str, Any]]]
Seen = Callable[[str, TimeWindow], Mapping[str, Any]]

# Number of threads for expensive answers. Some of them may still work for viewers who have disconnected.
THREADS = 4
MOST_POINTS, MOST_COLUMNS = 5_000, 1_000
# Maximum number of values in a manifest. Encoding a value as YAML takes some hundred bytes and 50 microseconds.
MOST_VALUES = 30_000
# The page's actions, with their effects.
ACTIONS: Mapping[str, tuple[Callable[[AsyncJobClient, str], Awaitable[TrainingJob]], str]] = {
    "suspend": (AsyncJobClient.suspend, "will be suspended: its ranks save a checkpoint first"),
    "resume": (AsyncJobClient.resume, "will resume from its checkpoint"),
    "restart": (AsyncJobClient.restart, "will be restarted: its ranks save a checkpoint first"),
}
_HINT = "`kubectl get distributedtrainingjob {name} -o yaml` shows it."


def _heavy(handler: Handler) -> Handler:
    """Wraps a handler of expensive requests, which run one at a time for each tenant."""

    async def in_turn(request: web.Request) -> web.StreamResponse:
        return await viewer_of(request).tenant.heavy(lambda: handler(request))

    return in_turn


class JobAnswers:
    """JobAnswers contains the handlers of requests about one job."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="heavy")

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes to the handlers."""
        base = "/api/jobs/{namespace}/{name}"
        return [
            web.get(f"{base}/why", _heavy(self._why)),
            web.get(f"{base}/metrics", _heavy(self._names)),
            web.get(f"{base}/curves", _heavy(self._curves)),
            web.get("/api/compare", _heavy(self._compare)),
            web.get(f"{base}/heat", _heavy(self._heat)),
            web.get(f"{base}/export", _heavy(self._export)),
            web.get(f"{base}/evidence", _heavy(self._evidence)),
            web.get(f"{base}/manifest", _heavy(self._manifest)),
            web.post(f"{base}/stacks", self._stacks),
            web.post(f"{base}/{{action:{'|'.join(ACTIONS)}}}", self._act),
        ]

    async def _why(self, request: web.Request) -> web.Response:
        job = await _living(request)
        situation = await gather(viewer_of(request).transport.for_diagnosis(), job)
        diagnosis = await self._in_thread(lambda: diagnose(situation))
        return answer(diagnosis.to_json())

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _names(self, request: web.Request) -> web.Response:
        return answer(await self._drawn(request, *self._asks_for_names()))

    def _asks_for_names(self) -> tuple[Recorded, Seen]:
        return (lambda history, *job, uid, **_: history.names(*job, uid=uid), lambda job, _: self._figures.names(job))

    async def _curves(self, request: web.Request) -> web.Response:
        names, points = names_of(request, "names", MOST_CURVES), _points_of(request)
        found = await self._drawn(
            request,
            lambda history, *job, **window: history.curves(*job, names, **window, points=points),
            lambda job, window: self._figures.curves(job, window, points, names),
        )
        return await self._in_thread(lambda: answer(found))

    async def _compare(self, request: web.Request) -> web.Response:
        """Answers with one curve of several jobs. Each job is read with the viewer's rights."""
        require_known(request, "metric", "x", "points", "job")
        metric, axis, points = names_of(request, "metric", 1), one_of(request, "x", AXES), _points_of(request)
        jobs = compared_jobs(request)
        if not metric:
            raise InvalidRequest("metric: there is none; give the name of a job's metric.")
        runs = []
        for job in jobs:
            try:
                curves = await self._metric_of(viewer_of(request), job, metric, points)
            except (ClientError, Refused) as error:
                runs.append(job.run(problem=str(error)[:MAX_SENTENCE]))
            else:
                runs.append(job.run(curves["curves"], axis, metric[0]))
        head = {"kind": "RunComparison", "metric": metric[0], "unit": unit_of(metric[0]), "x": axis}
        return await self._in_thread(lambda: answer({**head, "runs": runs}))

    async def _metric_of(
        self, viewer: Viewer, job: ComparedJob, names: Sequence[str], points: int
    ) -> Mapping[str, Any]:
        return await self._read(
            *(viewer, job.namespace, job.name, job.uid, TimeWindow()),
            lambda history, *of, uid, **_: history.curves(*of, names, uid=uid, points=points),
            lambda uid, window: self._figures.curves(uid, window, points, names),
        )

    async def _heat(self, request: web.Request) -> web.Response:
        figure = one_of(request, "figure", FIGURES)
        columns = whole_of(request, "columns", 240, most=MOST_COLUMNS) or 1
        found = await self._drawn(
            request,
            lambda history, *job, **window: history.heat(*job, **window, columns=columns, figure=figure),
            lambda job, window: self._figures.heat(job, window, columns, figure),
        )
        return await self._in_thread(lambda: answer(found))

    async def _export(self, request: web.Request) -> web.Response:
        _, name = job_of(request)
        kind = one_of(request, "format", ("csv", "json"))
        names = (await self._drawn(request, *self._asks_for_names()))["items"]
        own = [each["name"] for each in names if each["kind"] == "training" and each["name"] not in BUILT_IN]
        found = await self._series(request, own)
        headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
        if kind == "json":
            return answer(found, **headers)
        return web.Response(text=_csv(found), content_type="text/csv", headers=headers)

    async def _evidence(self, request: web.Request) -> web.Response:
        namespace, name = job_of(request)
        viewer, uid = viewer_of(request), uid_of(request)
        if isinstance(await viewer.look_up(namespace, name, uid), TrainingJob):
            kept = await AsyncJobClient(namespace, transport=viewer.transport).evidence(name)
            return await self._in_thread(lambda: answer({"items": [loads(one.to_json()) for one in kept]}))
        assert viewer.history is not None
        found = await viewer.history.evidence(namespace, name, uid=uid)
        return answer({"items": found["items"]})

    async def _manifest(self, request: web.Request) -> web.Response:
        namespace, name = job_of(request)
        raw = await _written(viewer_of(request), namespace, name, uid_of(request))
        text = await self._in_thread(lambda: manifest_of(raw, name))
        return web.Response(text=text, content_type="text/yaml")

    async def _stacks(self, request: web.Request) -> web.Response:
        await body_of(request)
        job = await _living(request)
        client = AsyncJobClient(job.namespace, transport=viewer_of(request).transport)
        found = await viewer_of(request).tenant.heavy(lambda: client.stacks(job.name))
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

    async def _act(self, request: web.Request) -> web.Response:
        act, effect = ACTIONS[request.match_info["action"]]
        await body_of(request)
        job = await _living(request)
        await act(AsyncJobClient(job.namespace, transport=viewer_of(request).transport), job.name)
        return answer({"sentence": f"Job {job.name} {effect}."})

    async def _series(self, request: web.Request, metrics: Sequence[str] = ()) -> Mapping[str, Any]:
        points = _points_of(request)
        return await self._drawn(
            request,
            lambda history, *job, **window: history.series(*job, **window, points=points, metrics=metrics),
            lambda job, window: self._figures.series(job, window, points, metrics),
        )

    async def _drawn(
        self,
        request: web.Request,
        recorded: Recorded,
        seen: Seen,
    ) -> Mapping[str, Any]:
        window = TimeWindow(*window_of(request))
        return await self._read(viewer_of(request), *job_of(request), uid_of(request), window, recorded, seen)

    async def _read(
        self,
        viewer: Viewer,
        namespace: str,
        name: str,
        uid: str | None,
        window: TimeWindow,
        recorded: Recorded,
        seen: Seen,
    ) -> Mapping[str, Any]:
        """Returns the history's answer, or else one from the dashboard's own figures.

        The dashboard's figures were read through `pods/proxy`, so the viewer needs that right.
        """
        if viewer.history is not None:
            with suppress(ClientError):
                since, until = window.since, window.until
                return await recorded(viewer.history, namespace, name, uid=uid, since=since, until=until)
        job = await viewer.living(namespace, name, uid)
        await viewer.access.require(Access("get", "pods", "", namespace=namespace, subresource="proxy"))
        return await self._in_thread(lambda: seen(job.uid, window))


async def _written(viewer: Viewer, namespace: str, name: str, uid: str | None) -> Mapping[str, Any]:
    """Returns a job with its whole spec. A deleted job is read from the history. Raises ClientError and Refused."""

    async def living() -> Mapping[str, Any]:
        job = await viewer.transport.trimmed(f"{collection_path(namespace)}/{name}", MANIFEST)
        metadata = mapping(job.get("metadata"))
        if uid not in (None, metadata.get("uid")):
            raise replaced(name)
        if LEFT_OUT in job or LEFT_OUT in metadata:
            raise too_large(name)
        return {"job": job}

    found = mapping((await viewer.or_recorded(living, namespace, name, uid)).get("job"))
    if "spec" not in found:
        raise too_large(name)
    return found


async def _living(request: web.Request) -> TrainingJob:
    return await viewer_of(request).living(*job_of(request), uid_of(request))


def _points_of(request: web.Request) -> int:
    return whole_of(request, "points", 1_000, most=MOST_POINTS) or 1


def _csv(series: Mapping[str, Any]) -> str:
    columns, text = columns_of(series), io.StringIO()
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    return text.getvalue()


def manifest_of(raw: Mapping[str, Any], name: str) -> str:
    """Returns a job as YAML, without its status. Raises Refused if the job is too large or too deeply nested."""
    shown = {key: value for key, value in raw.items() if key != "status"}
    shown["metadata"] = {key: value for key, value in mapping(raw.get("metadata")).items() if key != "managedFields"}
    _check(shown, name)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml_escapes(yaml.dump(shown, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100))


def too_large(name: str) -> Refused:
    """Returns the error for a manifest that is too large for the page."""
    return Refused(413, f"The manifest of {name} is too large for this page. {_HINT.format(name=name)}")


def _check(value: Any, name: str) -> None:
    # This loop doesn't recurse, so it can read values of any depth.
    waiting, count = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise too_large(name)
        if depth > MAX_NESTING + 2:
            what = f"The manifest of {name} has more than {MAX_NESTING} levels, too many for this page."
            raise Refused(422, f"{what} {_HINT.format(name=name)}")
        below = one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        waiting.extend((item, depth + 1) for item in below)
