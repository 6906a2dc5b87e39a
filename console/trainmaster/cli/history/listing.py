"""Recorded jobs are listed as `kubectl dtj list` lists those that are there, with those that are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from trainmaster.cli.console import columns
from trainmaster.cli.show import PHASE_STYLES
from trainmaster.client.view import duration, parse_time
from trainmaster_operator.wire.values import text

if TYPE_CHECKING:
    from trainmaster.client.history import HistoryReader

DELETED = " (deleted)"
STYLES = {**PHASE_STYLES, **{f"{phase}{DELETED}": style for phase, style in PHASE_STYLES.items()}}


async def recorded_jobs(
    reader: HistoryReader, namespace: str | None, limit: int
) -> tuple[list[Mapping[str, Any]], bool]:
    """Returns the newest recorded jobs (all with a limit of 0), and whether there are more. Raises ClientError."""
    from trainmaster.client.history.reading import MOST_JOBS

    found: list[Mapping[str, Any]] = []
    after = ""
    while True:
        wanted = min(MOST_JOBS, limit - len(found)) if limit else MOST_JOBS
        page = await reader.jobs(namespace, limit=wanted, after=after)
        found += page["items"]
        more = page["continue"]
        # A history that never comes to its end would have the same place again, or no jobs behind it.
        if not more or more == after or not page["items"] or (limit and len(found) >= limit):
            return found[: limit or None], bool(more) or bool(limit and len(found) > limit)
        after = more


def job_table(
    jobs: Sequence[Mapping[str, Any]], now: datetime | None = None, *, namespaces: bool = False, wide: bool = False
) -> Text:
    """Returns a table with one line a recorded job."""
    now = now or datetime.now(UTC)
    names = ["NAME", "PHASE", "ATTEMPTS", "RESTARTS", "STEP", "LOSS", "GOODPUT", "STARTED", "DURATION"]
    names = [*(["NAMESPACE"] if namespaces else []), *names, *(["UID", "LAST FAILURE"] if wide else [])]
    rows = []
    for job in jobs:
        cells = _cells(job, now)
        more = [job["uid"], failure_words(job["lastFailure"])] if wide else []
        rows.append([*([job["namespace"]] if namespaces else []), *cells, *more])
    return columns(names, rows, {names.index("PHASE"): STYLES})


def _cells(job: Mapping[str, Any], now: datetime) -> list[str]:
    started = parse_time(job["startedAt"])
    ran = ran_for(job["startedAt"], job["endedAt"] or job["deletedAt"], now)
    return [
        job["name"],
        phase_of(job),
        _known(job["attempt"]),
        _known(job["restarts"]),
        steps_of(job),
        "" if job["loss"] is None else f"{job['loss']:.4g}",
        "" if job["goodput"] is None else f"{job['goodput']:.0%}",
        "" if started is None else f"{duration((now - started).total_seconds())} ago",
        ran,
    ]


def phase_of(job: Mapping[str, Any]) -> str:
    """Returns a job's last phase, and whether it was deleted."""
    return f"{job['phase'] or 'Pending'}{DELETED if job['deletedAt'] else ''}"


def steps_of(job: Mapping[str, Any]) -> str:
    """Returns the steps done, of how many; empty where that isn't known."""
    if job["step"] is None:
        return ""
    return f"{job['step']}/{job['totalSteps']}" if job["totalSteps"] else str(job["step"])


def ran_for(started: str | None, ended: str | None, now: datetime) -> str:
    """Returns how long it was from one time to another, or is until now; empty where it hasn't begun."""
    begin = parse_time(started)
    return "" if begin is None else duration(((parse_time(ended) or now) - begin).total_seconds())


def failure_words(failure: Mapping[str, Any] | None) -> str:
    """Returns a failure (of the API) in one line: Error: worker 2 (rank 5, pod …) exited with code 1: ValueError: …

    Of what the rank wrote last, the last line says what happened.
    """
    if failure is None:
        return ""
    reason, lines = text(failure.get("reason")) or "unknown", text(failure.get("message"), None).split("\n")
    first, *others = [line.strip() for line in lines if line.strip()] or [""]
    if others:
        first = f"{first.partition(': ')[0]}: {others[-1]}"
    return f"{reason}: {first}" if first else reason


def _known(value: int | None) -> str:
    return "" if value is None else str(value)
