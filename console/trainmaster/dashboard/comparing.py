"""Compares runs: one metric of several jobs over the steps, or over the seconds since each job's first point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean
from typing import Any

from aiohttp import web

from trainmaster.client.errors import InvalidRequest
from trainmaster.client.job import require_name, require_namespace
from trainmaster.serving import require_uid

# Maximum number of compared jobs.
MOST_JOBS = 8
STEP, SECONDS = "step", "seconds"
AXES = (STEP, SECONDS)


@dataclass(frozen=True)
class ComparedJob:
    """ComparedJob identifies one of the compared jobs; without a uid, it is the newest one of this name."""

    namespace: str
    name: str
    uid: str | None

    def run(
        self, curves: Sequence[Mapping[str, Any]] = (), axis: str = STEP, metric: str = "", problem: str | None = None
    ) -> dict[str, Any]:
        """Returns the job's curve, or the reason why there is none."""
        points = points_of(curves[0], axis) if curves else []
        if problem is None and not points:
            problem = f"Job {self.name} has no values of {metric}" + (" with a step." if curves else ".")
        x, values, attempt = (list(column) for column in zip(*points, strict=True)) if points else ([], [], [])
        return {**vars(self), "x": x, "values": values, "attempt": attempt, "problem": problem}


def compared_jobs(request: web.Request) -> list[ComparedJob]:
    """Returns the jobs that the request's parameters `job` name (NAMESPACE/NAME or NAMESPACE/NAME/UID).

    Raises InvalidRequest.
    """
    given = list(dict.fromkeys(request.query.getall("job", [])))
    if not 0 < len(given) <= MOST_JOBS:
        raise InvalidRequest(f"job: {len(given)} jobs are given; give 1 to {MOST_JOBS}.")
    found = []
    for text in given:
        namespace, _, rest = text.partition("/")
        name, _, uid = rest.partition("/")
        require_namespace(namespace)
        require_name(name)
        if uid:
            require_uid(uid)
        found.append(ComparedJob(namespace, name, uid or None))
    return found


def points_of(curve: Mapping[str, Any], axis: str) -> list[tuple[float, float, int | None]]:
    """Returns a curve's known points: its place on the axis, the value, and the attempt.

    Over the steps, a point replaces earlier ones of the same or later steps, because the job was set back.
    """
    lines = [line["values"] for line in curve["lines"] if line["of"] in (None, "mean")]
    rows = [[value for value in row if value is not None] for row in zip(*lines, strict=True)]
    known = [bool(row) for row in rows]
    columns = (compress(curve[name], known) for name in ("at", "step", "attempt"))
    found: list[tuple[float, float, int | None]] = []
    for at, step, attempt, row in zip(*columns, filter(None, rows), strict=True):
        place = at - curve["at"][0] if axis == SECONDS else step
        if place is None:
            continue
        while axis == STEP and found and found[-1][0] >= place:
            found.pop()
        found.append((round(place, 3), fmean(row), attempt))
    return found
