"""`HistoryReader` is what can be asked of a history; `HistoryClient` asks one over HTTP.

One that is announced by its cluster is looked up by the first request, and again after a minute.

Every method returns the JSON object that the history answers, checked (`checking`). Times are seconds since the epoch
in series, and RFC 3339 in jobs and attempts; what isn't known is None. A job is named by its namespace and its name,
and by `uid` where it isn't the newest of that name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from trainmaster.client.history.announcement import announced_prefix
from trainmaster.client.history.checking import Checker
from trainmaster.client.job import require_name, require_namespace
from trainmaster.client.transport import AsyncTransport

# What a history answers in one piece, where nothing else is asked.
MOST_JOBS, MOST_POINTS, MOST_COLUMNS = 500, 1000, 240
# Seconds for which it is remembered where a cluster's history is.
ANNOUNCED_SECONDS = 60.0
STEP_SECONDS, GRADIENT_NORM, LOSS = "stepSeconds", "gradNorm", "loss"
FIGURES = (STEP_SECONDS, GRADIENT_NORM, LOSS)


class HistoryReader(Protocol):
    """HistoryReader is a history that can be read: over HTTP, or a file of one. Each method raises a ClientError."""

    async def jobs(
        self, namespace: str | None = None, *, name: str | None = None, limit: int = MOST_JOBS, after: str = ""
    ) -> Mapping[str, Any]:
        """Returns recorded jobs, newest first, and as `continue` what `after` has to be for the next ones."""

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a recorded job with its attempts. Raises JobNotFound."""

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = MOST_POINTS,
    ) -> Mapping[str, Any]:
        """Returns a job's curves, from `since` to `until`, in at most so many points."""

    async def heat(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = MOST_COLUMNS,
        figure: str = STEP_SECONDS,
    ) -> Mapping[str, Any]:
        """Returns a figure of each rank (FIGURES) over time."""

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns what was kept of attempts that ended badly."""

    async def logs(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        worker: int | None = None,
        tail: int | None = None,
    ) -> Mapping[str, Any]:
        """Returns the ends of the workers' logs, `tail` lines of each."""


class HistoryClient:
    """HistoryClient asks a history over a transport to it, or to the API server of the cluster that announces it."""

    def __init__(self, transport: AsyncTransport, *, is_announced: bool = False, address: str = "this address") -> None:
        """`address` is the history's, for sentences."""
        self._transport = transport
        self._is_announced = is_announced
        self._prefix, self._prefix_until = "", -math.inf
        self._checker = Checker(address)

    async def jobs(
        self, namespace: str | None = None, *, name: str | None = None, limit: int = MOST_JOBS, after: str = ""
    ) -> Mapping[str, Any]:
        """Returns recorded jobs, newest first."""
        query = {"namespace": namespace, "name": name, "limit": limit, "continue": after or None}
        return self._checker.jobs(await self._get("/v1/jobs", query))

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a recorded job with its attempts. Raises JobNotFound."""
        return self._checker.job(await self._of_job(namespace, name, "", {"uid": uid}))

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = MOST_POINTS,
    ) -> Mapping[str, Any]:
        """Returns a job's curves."""
        query = {"uid": uid, "from": since, "to": until, "points": points}
        return self._checker.series(await self._of_job(namespace, name, "/series", query))

    async def heat(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = MOST_COLUMNS,
        figure: str = STEP_SECONDS,
    ) -> Mapping[str, Any]:
        """Returns a figure of each rank over time."""
        query = {"uid": uid, "from": since, "to": until, "columns": columns, "figure": figure}
        return self._checker.heat(await self._of_job(namespace, name, "/heat", query))

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns what was kept of attempts that ended badly."""
        return self._checker.evidence(await self._of_job(namespace, name, "/evidence", {"uid": uid}))

    async def logs(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        worker: int | None = None,
        tail: int | None = None,
    ) -> Mapping[str, Any]:
        """Returns the ends of the workers' logs."""
        query = {"uid": uid, "worker": worker, "tail": tail}
        return self._checker.logs(await self._of_job(namespace, name, "/logs", query))

    async def _of_job(self, namespace: str, name: str, part: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        require_namespace(namespace)
        require_name(name)
        return await self._get(f"/v1/namespaces/{namespace}/jobs/{name}{part}", query)

    async def _get(self, path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {name: str(value) for name, value in query.items() if value is not None}
        if self._is_announced and time.monotonic() >= self._prefix_until:
            self._prefix = await announced_prefix(self._transport)
            self._prefix_until = time.monotonic() + ANNOUNCED_SECONDS
        found: Mapping[str, Any] = await self._transport.request("GET", f"{self._prefix}{path}", query=given)
        return found
