"""Reads a history over HTTP, and reads a job's complete curves piece by piece.

Every method returns the history's JSON answer after validation (see `answers`). In series, times are seconds since the
epoch; in jobs and attempts, they are RFC 3339 texts. Unknown values are None. A namespace and a name identify the
newest job of this name; for an older one, pass its `uid` too.

The number of points in an answer is limited, so complete curves are read in pieces. A history keeps fewer points for
older times. So reading begins with the newest piece, and the resolution of each piece determines the length of the next
piece. Periods without records are skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_camel

from trainmaster.client.blocking import Blocking
from trainmaster.client.errors import InvalidRequest
from trainmaster.client.history import answers
from trainmaster.client.history.finding import FoundHistory, announced_prefix, find_history
from trainmaster.client.job import require_name, require_namespace
from trainmaster.client.server import Server
from trainmaster.client.transport import READ_SECONDS, AsyncTransport, HttpTransport

# Default number of points in an answer about curves.
POINTS = 1000
# How long a history's announced address is cached (seconds).
ANNOUNCED_SECONDS = 60.0
FIGURES = ("stepSeconds", "gradNorm", "loss")
# The shortest time between two points of a history, in seconds (--history-seconds is 2 by default).
FINEST_SECONDS = 0.5
# Maximum number of points in a piece. Such a piece takes about a megabyte.
PIECE_POINTS = 5_000
# Maximum number of points of a piece of system figures, which have many lines.
SYSTEM_POINTS = 1_000
# Pieces are planned for this share of the maximum, because one point beyond the maximum would halve the resolution.
FILLED = 0.9
Columns = dict[str, list[Any]]
# A function that requests the series between two times.
Ask = Callable[[float, float], Awaitable[Mapping[str, Any]]]


@dataclass(eq=False)
class HistoryReader:
    """HistoryReader asks a history, directly or through the API server. Each method can raise a ClientError."""

    transport: AsyncTransport
    is_announced: bool = False
    # The history's address, for error messages.
    address: str = "this address"
    _prefix: str = field(default="", init=False)
    _prefix_until: float = field(default=-math.inf, init=False)

    async def jobs(
        self, namespace: str | None = None, *, limit: int = answers.MOST_JOBS, after: str = ""
    ) -> Mapping[str, Any]:
        """Returns recorded jobs, newest first. To get the next ones, pass the answer's `continue` as `after`."""
        query = {"namespace": namespace, "limit": limit, "continue": after or None}
        return await self._get(answers.RecordedJobList, "/v1/jobs", query)

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a recorded job with its attempts. Raises JobNotFound."""
        return await self._of_job(answers.RecordedJobDetail, namespace, name, "", {"uid": uid})

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = POINTS,
        metrics: Sequence[str] = (),
    ) -> Mapping[str, Any]:
        """Returns a job's curves from `since` to `until`, with at most `points` points.

        `metrics` names metrics of the ranks' own that are included.
        """
        query = {"uid": uid, "from": since, "to": until, "points": points, "metrics": ",".join(metrics) or None}
        return await self._of_job(answers.Series, namespace, name, "/series", query)

    async def names(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns the names of a job's curves (MetricNames)."""
        return await self._of_job(answers.MetricNames, namespace, name, "/metrics", {"uid": uid})

    async def curves(
        self,
        namespace: str,
        name: str,
        names: Sequence[str],
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = POINTS,
    ) -> Mapping[str, Any]:
        """Returns the curves of these names, each of at most `points` points (MetricCurves)."""
        query = {"uid": uid, "from": since, "to": until, "points": points, "names": ",".join(names)}
        return await self._of_job(answers.MetricCurves, namespace, name, "/curves", query)

    async def heat(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = answers.MOST_COLUMNS,
        figure: str = FIGURES[0],
    ) -> Mapping[str, Any]:
        """Returns the values of a figure (FIGURES) for each rank over time."""
        query = {"uid": uid, "from": since, "to": until, "columns": columns, "figure": figure}
        return await self._of_job(answers.RankHeat, namespace, name, "/heat", query)

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns the evidence of failed attempts."""
        return await self._of_job(answers.EvidenceList, namespace, name, "/evidence", {"uid": uid})

    async def logs(
        self, namespace: str, name: str, *, uid: str | None = None, worker: int | None = None, tail: int | None = None
    ) -> Mapping[str, Any]:
        """Returns the last `tail` lines of each worker's log."""
        query = {"uid": uid, "worker": worker, "tail": tail}
        return await self._of_job(answers.LogList, namespace, name, "/logs", query)

    async def _of_job(
        self, kind: type[answers.HistoryAnswer], namespace: str, name: str, part: str, query: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        require_namespace(namespace)
        require_name(name)
        return await self._get(kind, f"/v1/namespaces/{namespace}/jobs/{name}{part}", query)

    async def _get(self, kind: type[answers.HistoryAnswer], path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {name: str(value) for name, value in query.items() if value is not None}
        if self.is_announced and time.monotonic() >= self._prefix_until:
            self._prefix = await announced_prefix(self.transport)
            self._prefix_until = time.monotonic() + ANNOUNCED_SECONDS
        return kind.checked(await self.transport.request("GET", f"{self._prefix}{path}", query=given), self.address)


def blocking_history(found: FoundHistory, *, seconds: float | None = READ_SECONDS) -> HistoryReader:
    """Returns a reader whose coroutines block (`blocking.run`)."""
    transport = HttpTransport(found.server, seconds=seconds, reader=found.answers)
    return HistoryReader(Blocking(transport), is_announced=found.is_announced, address=found.server.address)


@asynccontextmanager
async def history_beside(
    transport: AsyncTransport, history: str | None, token: str | None
) -> AsyncIterator[HistoryReader]:
    """Yields a reader of the history at the given address, or else of the cluster's, with its own connection."""
    server = getattr(transport.transport if isinstance(transport, Blocking) else transport, "server", None)
    if not isinstance(server, Server):
        raise InvalidRequest("This client's transport doesn't name its cluster: make the client without a transport.")
    found = find_history(history, server, token=token)
    if isinstance(transport, Blocking):
        yield blocking_history(found)
        return
    from trainmaster.client.asynchronous import AiohttpTransport

    own = AiohttpTransport(found.server, reader=found.answers)
    try:
        yield HistoryReader(own, is_announced=found.is_announced, address=found.server.address)
    finally:
        await own.close()


async def own_metrics(reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None) -> list[str]:
    """Returns the names of the metrics that a job's ranks report besides the built-in curves."""
    listed = (await reader.names(namespace, name, uid=uid))["items"]
    built_in = {*map(to_camel, answers.Series.columns)}
    own = [each["name"] for each in listed if each["kind"] == "training" and each["name"] not in built_in]
    return own[: answers.MOST_METRICS]


async def curves(reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None) -> Columns:
    """Returns a job's curves, sorted by time, as columns for `pandas.DataFrame`. Raises JobNotFound.

    The ranks' own metrics have the names `metrics.NAME`.
    """
    own = await own_metrics(reader, namespace, name, uid=uid)
    overview = await reader.series(namespace, name, uid=uid, metrics=own)

    async def ask(since: float, until: float) -> Mapping[str, Any]:
        return await reader.series(namespace, name, uid=uid, since=since, until=until, points=PIECE_POINTS, metrics=own)

    columns = [f"metrics.{each}" for each in own]
    pieces = [
        dict.fromkeys(columns, [None] * len(piece["at"])) | answers.columns_of(piece)
        async for piece in _pieces(ask, overview, PIECE_POINTS)
    ]
    found: Columns = {column: [] for column in (*answers.columns_of({**overview, "metrics": {}}), *columns)}
    newest = -1.0
    for piece in reversed(pieces):
        # A piece may repeat the last point of the previous one.
        first = next((at for at, time in enumerate(piece["at"]) if time > newest), len(piece["at"]))
        for column, values in piece.items():
            found[column].extend(values[first:])
        newest = found["at"][-1] if found["at"] else newest
    return found


async def rank_figures(
    reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None
) -> tuple[Columns, int]:
    """Returns the ranks' figures as columns, with a row per time and rank, and how many ranks were left out."""
    overview = await reader.series(namespace, name, uid=uid)
    left_out = 0
    rows: dict[tuple[float, int, int], dict[str, Any]] = {}
    for figure in FIGURES:

        async def ask(since: float, until: float, figure: str = figure) -> Mapping[str, Any]:
            return await reader.heat(namespace, name, uid=uid, since=since, until=until, figure=figure)

        async for piece in _pieces(ask, overview, answers.MOST_COLUMNS):
            left_out = max(left_out, piece["leftOut"])
            for at, attempt, values in zip(piece["at"], piece["attempt"], piece["values"], strict=True):
                for rank, worker, value in zip(piece["ranks"], piece["workers"], values, strict=True):
                    if value is not None:
                        rows.setdefault((at, attempt or 0, rank), {"worker": worker})[figure] = value
    found: Columns = {name: [] for name in ("at", "attempt", "rank", "worker", *FIGURES)}
    for (at, attempt, rank), row in sorted(rows.items(), key=lambda item: item[0]):
        for name, value in zip(found, (at, attempt, rank, row["worker"], *map(row.get, FIGURES)), strict=True):
            found[name].append(value)
    return found, left_out


async def system_figures(reader: HistoryReader, namespace: str, name: str, *, uid: str | None = None) -> Columns:
    """Returns the figures of workers and their GPUs as columns, with a row per time and worker or GPU.

    If there are more lines than a history shows at once, the rows are the minimum, mean and maximum (`of`) of all.
    """
    listed = (await reader.names(namespace, name, uid=uid))["items"]
    of_system = [each for each in listed if each["kind"] == "system"]
    figures = [each for item in of_system for each in (item["name"], item["limitedBy"]) if each][: answers.MOST_CURVES]

    async def ask(since: float | None, until: float | None, points: int = SYSTEM_POINTS) -> Mapping[str, Any]:
        window = {"since": since, "until": until}
        found = await reader.curves(namespace, name, figures, uid=uid, points=points, **window)
        at = sorted({at for curve in found["curves"] for at in curve["at"]})
        resolution = max((curve["resolutionSeconds"] for curve in found["curves"]), default=0.0)
        return {"at": at, "resolutionSeconds": resolution, "curves": found["curves"]}

    rows: dict[tuple[Any, ...], dict[str, float]] = {}
    if figures:
        async for piece in _pieces(ask, await ask(None, None, POINTS), SYSTEM_POINTS):
            for curve in piece["curves"]:
                for line in curve["lines"]:
                    for at, attempt, value in zip(curve["at"], curve["attempt"], line["values"], strict=True):
                        if value is not None:
                            key = at, attempt, line["worker"], line["gpu"], line["of"]
                            rows.setdefault(key, {})[curve["name"]] = value
    keys = ("at", "attempt", "worker", "gpu", "of")
    numbers = {row: [-1 if number is None else number for number in row[:4]] for row in rows}
    in_order = sorted(rows.items(), key=lambda item: numbers[item[0]])
    found: Columns = {key: [row[place] for row, _ in in_order] for place, key in enumerate(keys)}
    return found | {figure: [values.get(figure) for _, values in in_order] for figure in figures}


async def _pieces(ask: Ask, overview: Mapping[str, Any], points: int) -> AsyncIterator[Mapping[str, Any]]:
    """Yields the records in pieces of at most `points` points, newest first."""
    left: list[float] = list(overview["at"])
    # A point may cover this many seconds before and after its time.
    around = max(overview["resolutionSeconds"], FINEST_SECONDS)
    resolution = FINEST_SECONDS
    until = float("inf")
    while left and until > 0:
        until = min(until, left[-1] + around)
        since = max(0.0, until - FILLED * points * resolution)
        piece = await ask(since, until)
        yield piece
        resolution = max(resolution, piece["resolutionSeconds"])
        until = since
        while left and left[-1] - around >= since:
            left.pop()
