"""Watches jobs and Events. Whenever a watch breaks, ends or expires, the state is read again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trainmaster.client.errors import InvalidRequest, JobNotFound, WaitTimeout
from trainmaster.client.job import TrainingJob, collection_path, items_of, label_query
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.api.json_codec import decode
from trainmaster_operator.wire.values import mapping

# If a watch is silent for this long (seconds), it is reopened, because its connection may be half-open.
WATCH_SECONDS = 60
REOPEN_SECONDS = 0.5


@dataclass(frozen=True)
class Watcher:
    """Watcher watches a namespace's jobs. None means all namespaces."""

    transport: AsyncTransport
    namespace: str | None
    # The label selector for `all`.
    selector: str | None = None

    @property
    def _path(self) -> str:
        return collection_path(self.namespace)

    async def one(self, name: str) -> AsyncGenerator[TrainingJob, None]:
        """Yields the job's state, then each change, until the job is deleted."""
        while True:
            try:
                job = await read_job(self.transport, self.namespace, name)
            except JobNotFound:
                return
            yield job
            async with aclosing(self._events(job.version, name=name)) as events:
                async for kind, changed in events:
                    if kind == "DELETED":
                        return
                    yield changed

    async def all(self) -> AsyncGenerator[tuple[TrainingJob, bool], None]:
        """Yields all jobs, then each changed or deleted job, forever. The flag is True if the job was deleted."""
        known: dict[str, TrainingJob] = {}
        while True:
            answer = await self.transport.request("GET", self._path, query=label_query(self.selector))
            listed = {job.uid: job for job in map(TrainingJob.of, items_of(answer))}
            for uid in known.keys() - listed.keys():
                yield known.pop(uid), True
            for uid, job in sorted(listed.items(), key=lambda item: (item[1].namespace, item[1].name)):
                if uid not in known or known[uid].version != job.version:
                    yield job, False
            known = listed
            version = str((answer.get("metadata") or {}).get("resourceVersion") or "")
            async with aclosing(self._events(version)) as events:
                async for kind, job in events:
                    if kind == "DELETED":
                        known.pop(job.uid, None)
                    else:
                        known[job.uid] = job
                    yield job, kind == "DELETED"

    async def until(self, name: str, reached: Callable[[TrainingJob], bool], seconds: float | None) -> TrainingJob:
        """Waits until `reached` returns True for a job.

        Raises WaitTimeout, and JobNotFound if the job is deleted meanwhile.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        job = await read_job(self.transport, self.namespace, name)
        while not reached(job):
            left = WATCH_SECONDS if deadline is None else deadline - time.monotonic()
            if seconds is not None and left <= 0:
                waited = f"{seconds:.0f}" if seconds >= 1 else f"{seconds:g}"
                raise WaitTimeout(f"timed out after {waited} s: job {name} is still {job.phase}", job.phase)
            async with aclosing(self._events(job.version, name=name, seconds=min(left, WATCH_SECONDS))) as events:
                async for kind, job in events:
                    if kind == "DELETED":
                        raise JobNotFound(f"Job {name} was deleted while it was waited for.")
                    if reached(job):
                        return job
            try:
                job = await read_job(self.transport, self.namespace, name)
            except JobNotFound as error:
                raise JobNotFound(f"Job {name} was deleted while it was waited for.") from error
        return job

    async def _events(
        self, version: str, *, name: str | None = None, seconds: float = WATCH_SECONDS
    ) -> AsyncGenerator[tuple[str, TrainingJob], None]:
        """Yields the changes of jobs until the watch ends. The caller must then read the state again."""
        narrowed = label_query(self.selector)
        if name is not None:
            narrowed["fieldSelector"] = f"metadata.name={name}"
        async with aclosing(changes(self.transport, self._path, version, narrowed, seconds)) as found:
            async for kind, changed in found:
                yield kind, TrainingJob.of(changed)


async def read_job(transport: AsyncTransport, namespace: str | None, name: str) -> TrainingJob:
    """Returns a job. Raises JobNotFound."""
    return TrainingJob.of(await transport.request("GET", f"{collection_path(namespace)}/{quote(name, safe='')}"))


async def changes(
    transport: AsyncTransport,
    path: str,
    version: str,
    narrowed: Mapping[str, str] | None = None,
    seconds: float = WATCH_SECONDS,
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yields a watch's events until it ends or fails. The caller must then read the state again."""
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


async def list_events(transport: AsyncTransport, namespace: str | None) -> list[Mapping[str, Any]]:
    """Returns a namespace's Events. None means all namespaces."""
    return items_of(await transport.request("GET", _path(namespace)))


async def watch_events(
    transport: AsyncTransport, namespace: str | None
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yields the existing Events as ADDED, then each added or changed Event, forever."""
    path = _path(namespace)
    known: dict[str, str] = {}
    while True:
        answer = await transport.request("GET", path)
        listed = {str(item["metadata"].get("uid")): item for item in items_of(answer)}
        for uid, item in listed.items():
            if known.get(uid) != _version(item):
                yield ("MODIFIED" if uid in known else "ADDED"), item
        known = {uid: _version(item) for uid, item in listed.items()}
        async with aclosing(changes(transport, path, _version(answer))) as changed:
            async for kind, item in changed:
                known[str(mapping(item.get("metadata")).get("uid"))] = _version(item)
                yield kind, item


def _path(namespace: str | None) -> str:
    return "/api/v1/events" if namespace is None else f"/api/v1/namespaces/{namespace}/events"


def _version(found: Mapping[str, Any]) -> str:
    return str(mapping(found.get("metadata")).get("resourceVersion") or "")
