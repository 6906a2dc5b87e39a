"""Watches jobs and Events. Whenever a watch breaks, ends or expires, the state is read again."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from trainmaster.client.errors import InvalidRequest, JobNotFound, WaitTimeout
from trainmaster.client.job import TrainingJob, collection_path, items_of, label_query
from trainmaster.client.objects import text
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.json_codec import decode

# If a watch is silent for this long (seconds), it is reopened, because its connection may be half-open.
WATCH_SECONDS = 60
REOPEN_SECONDS = 0.5


async def read_job(transport: AsyncTransport, namespace: str | None, name: str) -> TrainingJob:
    """Returns a job. Raises JobNotFound."""
    return TrainingJob.of(await transport.request("GET", f"{collection_path(namespace)}/{quote(name, safe='')}"))


async def watch_job(
    transport: AsyncTransport, namespace: str, name: str, *, deadline: float = math.inf, must_exist: bool = False
) -> AsyncGenerator[TrainingJob, None]:
    """Yields the job now and after each change, until the job is deleted or the deadline passes.

    Raises JobNotFound if the job doesn't exist at the start and `must_exist`.
    """
    path, narrowed = collection_path(namespace), {"fieldSelector": f"metadata.name={name}"}
    while True:
        try:
            job = await read_job(transport, namespace, name)
        except JobNotFound:
            if must_exist:
                raise
            return
        yield job
        must_exist, left = False, min(WATCH_SECONDS, deadline - time.monotonic())
        if left <= 0:
            return
        async with aclosing(changes(transport, path, job.version, narrowed, left)) as events:
            async for kind, changed in events:
                if kind == "DELETED":
                    return
                yield TrainingJob.of(changed)


async def wait_for_job(
    transport: AsyncTransport, namespace: str, name: str, reached: Callable[[TrainingJob], bool], seconds: float | None
) -> TrainingJob:
    """Waits until `reached` returns True for a job. Raises WaitTimeout, and JobNotFound if the job is deleted."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    async with aclosing(watch_job(transport, namespace, name, deadline=deadline, must_exist=True)) as states:
        async for job in states:
            if reached(job):
                return job
    if seconds is None or time.monotonic() < deadline:
        raise JobNotFound(f"Job {name} was deleted while it was waited for.")
    waited = f"{seconds:.0f}" if seconds >= 1 else f"{seconds:g}"
    raise WaitTimeout(f"timed out after {waited} s: job {name} is still {job.phase}", job.phase)


async def watch_jobs(
    transport: AsyncTransport, namespace: str | None, selector: str | None
) -> AsyncGenerator[tuple[TrainingJob, bool], None]:
    """Yields all jobs, then each new, changed or deleted job, forever. The flag is True if the job was deleted."""
    async with aclosing(watch_objects(transport, collection_path(namespace), label_query(selector))) as found:
        async for kind, item in found:
            yield TrainingJob.of(item), kind == "DELETED"


def events_path(namespace: str | None) -> str:
    """Returns the path of a namespace's Events. None means all namespaces."""
    return "/api/v1/events" if namespace is None else f"/api/v1/namespaces/{namespace}/events"


async def watch_objects(
    transport: AsyncTransport, path: str, narrowed: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yields the existing objects as ADDED, then each added, changed or deleted object, forever."""
    known: dict[str, Mapping[str, Any]] = {}
    while True:
        answer = await transport.request("GET", path, query=narrowed or {})
        listed = {text(item, "metadata", "uid"): item for item in items_of(answer)}
        for uid in known.keys() - listed.keys():
            yield "DELETED", known[uid]
        for uid, item in listed.items():
            if uid not in known:
                yield "ADDED", item
            elif text(known[uid], "metadata", "resourceVersion") != text(item, "metadata", "resourceVersion"):
                yield "MODIFIED", item
        known = listed
        async with aclosing(changes(transport, path, text(answer, "metadata", "resourceVersion"), narrowed)) as changed:
            async for kind, item in changed:
                known[text(item, "metadata", "uid")] = item
                if kind == "DELETED":
                    del known[text(item, "metadata", "uid")]
                yield kind, item


async def changes(
    transport: AsyncTransport,
    path: str,
    version: str,
    narrowed: Mapping[str, str] | None = None,
    seconds: float = WATCH_SECONDS,
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yields a watch's events until the watch ends or fails. The caller must then read the state again."""
    query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(max(1, round(seconds)))}
    query |= narrowed or {}
    began = time.monotonic()
    try:
        async with aclosing(transport.lines(path, query=query, read_seconds=seconds + 5)) as lines:
            async for line in lines:
                event = decode(line)
                kind, changed = event["type"], event["object"]
                if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(changed, dict):
                    break
                yield kind, changed
    except (InvalidRequest, ValueError, TypeError, KeyError):
        # 410 means that the version is too old. A line that isn't an event comes from a proxy. In both cases, the
        # caller tries again.
        pass
    if time.monotonic() - began < REOPEN_SECONDS:
        # This pause prevents a busy loop if a server ends watches at once.
        await transport.sleep(REOPEN_SECONDS)
