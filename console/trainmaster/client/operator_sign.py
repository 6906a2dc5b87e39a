"""Finds since when no operator has been seen. Phases and steps in a job's status are then as of that time.

An operator renews its Lease every two seconds, even if it leads without an election. The viewer's clock may differ from
the operator's, so an old Lease counts only after a second look at which it hasn't changed. A status that was written
later than the Lease is a sign of life too. If no Lease can be read, nothing is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from trainmaster.client.errors import ClientError, JobNotFound, NotAllowed
from trainmaster.client.objects import at, items, text
from trainmaster.client.transport import AsyncTransport
from trainmaster.client.view import duration
from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.api.v1alpha1.names import TERMINAL_PHASES
from trainmaster_operator.wire.names import LEASE_NAME, LEASE_NAMESPACE

# Age from which a sign of life counts as old. It is longer than the time in which another operator takes the Lease.
SILENT_SECONDS = 30.0
# Seconds between two looks at a Lease. A living operator renews it within them.
CONFIRM_SECONDS = 5.0
# Maximum number of namespaces whose Leases are read.
_MOST_PLACES = 4
OPERATORS = {"labelSelector": "app.kubernetes.io/name=trainmaster", "limit": "20"}


@dataclass(frozen=True)
class Silence:
    """Silence is the time since which no operator has been seen."""

    since: datetime

    def sentence(self, now: datetime) -> str:
        """Returns the message that a view shows, with the local time."""
        return (
            f"The operator hasn't been seen since {clock(self.since, now)}: phases, steps and figures are as of then."
        )


def clock(moment: datetime, now: datetime) -> str:
    """Returns a moment as local time, with the date if it isn't today's, and its age: `22:01:00 UTC (12m ago)`."""
    local = moment.astimezone()
    shape = "%H:%M:%S" if local.date() == now.astimezone().date() else "%d %b %H:%M"
    return f"{local:{shape} %Z} ({duration(max(0.0, (now - moment).total_seconds()))} ago)"


@dataclass
class OperatorSign:
    """OperatorSign looks for signs of life of the operator that serves some jobs."""

    transport: AsyncTransport
    # Where the Lease is, once it was found.
    _places: tuple[str, ...] = ()
    # The Lease's last time, and when (by this machine's clock) it was first seen.
    _renewed: str = ""
    _renewed_at: float = field(default=0.0)

    async def look(self, jobs: Sequence[Mapping[str, Any]]) -> Silence | None:
        """Returns the operator's silence, or None if it lives, if nobody knows, or if another look is needed."""
        if not any(text(job, "status", "phase") not in TERMINAL_PHASES for job in jobs):
            return None
        namespaces = {text(job, "metadata", "namespace") for job in jobs}
        try:
            renewed = await self._lease(next(iter(namespaces)) if len(namespaces) == 1 else "")
        except ClientError:
            # While the API server doesn't answer, no operator can renew its Lease.
            self._renewed = ""
            raise
        if renewed and renewed != self._renewed:
            self._renewed, self._renewed_at = renewed, time.monotonic()
        signs = [found for found in (to_datetime(renewed), *map(written_at, jobs)) if found is not None]
        if not renewed or not signs or datetime.now(UTC) - max(signs) < timedelta(seconds=SILENT_SECONDS):
            return None
        return Silence(max(signs)) if time.monotonic() - self._renewed_at >= CONFIRM_SECONDS else None

    async def look_twice(self, jobs: Sequence[Mapping[str, Any]]) -> Silence | None:
        """Looks again after a moment if the operator seems to be silent."""
        found = await self.look(jobs)
        renewed = to_datetime(self._renewed)
        if found is not None or renewed is None or datetime.now(UTC) - renewed < timedelta(seconds=SILENT_SECONDS):
            return found
        await self.transport.sleep(CONFIRM_SECONDS)
        return await self.look(jobs)

    async def _lease(self, namespace: str) -> str:
        """Returns the newest renewal of the operator's Leases that the user may read; empty if there is none."""
        places = self._places or tuple(dict.fromkeys(filter(None, (LEASE_NAMESPACE, namespace))))
        found = {place: await self._renewal(place) for place in places}
        if not any(found.values()) and not self._places:
            # The operator was installed elsewhere. Few users may list Deployments of all namespaces.
            answer = await self._get("/apis/apps/v1/deployments", OPERATORS)
            others = {text(each, "metadata", "namespace") for each in items(answer, "items")} - found.keys()
            found |= {place: await self._renewal(place) for place in sorted(others)[:_MOST_PLACES]}
        self._places = tuple(place for place, renewed in found.items() if renewed) or places
        return max(found.values(), default="")

    async def _renewal(self, namespace: str) -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}"
        return text(await self._get(path), "spec", "renewTime")

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        try:
            return await self.transport.request("GET", path, query=query or {})
        except (NotAllowed, JobNotFound):
            return {}


def written_at(job: Mapping[str, Any]) -> datetime | None:
    """Returns the newest time in a job's status, which only the operator writes."""

    def times() -> Iterator[object]:
        yield at(job, "status", "timeSpent", "until")
        yield at(job, "status", "progress", "reportedAt")
        yield from (condition.get("lastTransitionTime") for condition in items(job, "status", "conditions"))

    return max((found for found in map(to_datetime, times()) if found is not None), default=None)
