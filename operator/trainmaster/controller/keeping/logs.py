"""Keeps the end of the workers' logs when a job has ended or is suspended, before its pods go, where that is allowed.

They are in the ConfigMap `<job>-logs`, one key a worker (`worker-0.log`), owned by the job, so that `kubectl dtj logs`
and plain kubectl can show them as long as the job exists. A ConfigMap holds at most 1 MiB: the worker that failed and
worker 0 get the largest shares, the others split what is left. What is printed after a suspension is added to what was
kept then; the agents print where an attempt begins. When each line was printed is kept beside it (api/kept_logs.py), so
that the workers' lines can be merged. The label `trainmaster.dev/content: logs` keeps it out of the operator's watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from trainmaster.api.kept_logs import KeptLog, kept_workers, log_key, logs_name, times_key
from trainmaster.api.stamped_lines import StampedLine, stamped_line
from trainmaster.controller.apiserver.cluster import CONFIG_MAPS, Cluster, whole
from trainmaster.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.views import owner_uid
from trainmaster.controller.keeping.owned_config_map import owned_config_map
from trainmaster.controller.watching.watched import LOGS_CONTENT
from trainmaster.reconciling.messages import listed
from trainmaster.reconciling.observed.snapshot import Job, PodView

logger = logging.getLogger(__name__)

# The longest tail of one worker, and of how many lines at most.
LONGEST_TAIL = 64 * 1024
TAIL_LINES = 2_000
# Seconds for all logs together: the pods hold GPUs while they are read.
READING_SECONDS = 5.0
# The agents' stream is faster than the container's log: a log is complete when it has stood still for so long.
SETTLE_SECONDS = 0.2
SETTLE_TRIES = 8
CONCURRENT_READS = 16
# The newest attempt of which a kept log has something.
ATTEMPT_ANNOTATION = "trainmaster.dev/attempt"


def allows_logs(job: Job) -> bool:
    """Returns whether the job lets its output be kept (runPolicy.keepLogs). What can't be read hasn't allowed it."""
    return job.spec is not None and job.spec.run_policy.keep_logs


class OnKept(Protocol):
    """Gets the workers' logs that were written, as they stand in the ConfigMap."""

    def __call__(self, job: Job, logs: Mapping[int, KeptLog]) -> None: ...


class KeptLogs:
    """Saves a job's logs once in an attempt."""

    def __init__(self, cluster: Cluster, *, limit: int, on_kept: OnKept | None = None) -> None:
        self._cluster = cluster
        self._on_kept = on_kept
        self._limit = limit
        # By uid, the attempt whose logs were saved last.
        self._saved: dict[str, int] = {}

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._saved.pop(uid, None)

    async def __call__(self, key: JobKey, snapshot: Snapshot, *, complete: bool = True) -> None:
        """Save what there is. Never in the way of the job's end: what can't be read or written is logged.

        `complete`: the ranks have ended, so that it is worth waiting for their last lines.
        """
        job = snapshot.job
        attempt = job.status.attempt
        pods = [pod for pod in snapshot.observed.pods if pod.worker_container is not None and _has_started(pod)]
        if self._limit <= 0 or not allows_logs(job) or self._saved.get(job.uid) == attempt or job.deleting or not pods:
            return
        failed = {failure.pod for failure in job.status.failures}
        shares = share_out(pods, self._limit, failed)
        slots = asyncio.Semaphore(CONCURRENT_READS)
        # Where the status names none, all of them train. A spare prints no last lines.
        training = job.status.worker_order or [pod.worker for pod in pods]

        async def read(pod: PodView, limit: int) -> tuple[int, KeptLog] | None:
            async with slots:
                try:
                    trains = pod.worker in training
                    log = await self._log(key.namespace, pod, complete=complete and trains)
                except (ClusterError, TimeoutError) as error:
                    logger.info("%s: the log of %s isn't kept: %s", key, pod.name, error)
                    return None
            return (pod.worker, log.ending(limit)) if log.lines or trains else None

        tasks = {asyncio.create_task(read(pod, limit)): pod for pod, limit in shares}
        done, late = await asyncio.wait(tasks, timeout=READING_SECONDS)
        for task in late:
            task.cancel()
        if late:
            names = listed(sorted(tasks[task].name for task in late))
            logger.warning("%s: the log of %s isn't kept: it wasn't read within %g s", key, names, READING_SECONDS)
        logs = dict(entry for task in done if (entry := task.result()) is not None)
        if logs:
            await self._write(key, snapshot, logs, {pod.worker: limit for pod, limit in shares})
        self._saved[job.uid] = attempt

    async def tail(self, namespace: str, pod: PodView, limit: int, *, complete: bool = True) -> str:
        """Read the end of a worker's log, at most `limit` bytes, from whole lines. Raises ClusterError."""
        log = await self._log(namespace, pod, complete=complete)
        return "".join(f"{line}\n" for line in KeptLog(log.lines).ending(limit).lines)

    async def _log(self, namespace: str, pod: PodView, *, complete: bool) -> KeptLog:
        # limitBytes cuts the *end* off (kubelet's meaning), so more is read than kept, by lines, and cut later.
        container = pod.worker_container
        restarts = container.restarts if container is not None else 0
        restarted = restarts > 0
        if container is not None and container.state != "running":
            # Nothing comes any more. While the container waits for its next start, this is the one before already.
            lines = await self._read(namespace, pod.name)
            restarted = restarted and container.state == "terminated"
        elif complete:
            lines = await self._settled(namespace, pod.name, may_be_empty=restarted)
        else:
            lines = await self._read(namespace, pod.name)
        cut = len(lines) >= TAIL_LINES or restarts > 1
        if restarted or not lines:
            # An agent that reported by exiting left what its ranks printed in the log of the container before; an empty
            # log is one of a container that was started again since the pod was last seen.
            before = await self._read(namespace, pod.name, previous=True)
            cut = cut or len(before) >= TAIL_LINES
            lines = [*before, *lines]
        times = tuple(round(line.time * 1_000) for line in lines if line.time is not None)
        return KeptLog(tuple(line.text for line in lines), times if len(times) == len(lines) else None, cut)

    async def _settled(self, namespace: str, pod: str, *, may_be_empty: bool) -> list[StampedLine]:
        """Read the log once it doesn't grow any more; an empty one may still be on its way."""
        before: list[StampedLine] | None = None
        lines: list[StampedLine] = []
        for _ in range(SETTLE_TRIES):
            lines = await self._read(namespace, pod)
            if lines == before and (lines or may_be_empty):
                break
            before = lines
            await asyncio.sleep(SETTLE_SECONDS)
        return lines

    async def _read(self, namespace: str, pod: str, *, previous: bool = False) -> list[StampedLine]:
        try:
            text = await self._cluster.pod_log(
                namespace,
                pod,
                container="worker",
                tail_lines=TAIL_LINES,
                limit_bytes=16 * LONGEST_TAIL,
                previous=previous,
                timestamps=True,
            )
        except Refused:
            if previous:
                # The kubelet keeps the last container's log only, and that one may be gone already (400).
                return []
            raise
        # splitlines() would also split at what isn't the end of a line, such as a form feed.
        whole = text.replace("\x00", "").removesuffix("\n")
        return [stamped_line(line) for line in whole.split("\n")] if whole else []

    async def _write(
        self, key: JobKey, snapshot: Snapshot, logs: Mapping[int, KeptLog], shares: Mapping[int, int]
    ) -> None:
        """Write what was read behind what was kept of earlier attempts."""
        job = snapshot.job
        data = {name: text for worker, log in sorted(logs.items()) for name, text in log.to_data(worker).items()}
        body = owned_config_map(job, logs_name(job.name), LOGS_CONTENT, data)
        body["metadata"]["annotations"] = {ATTEMPT_ANNOTATION: str(job.status.attempt)}
        try:
            try:
                await self._cluster.create(CONFIG_MAPS, job.namespace, body)
                written: Mapping[str, str | None] = data
            except AlreadyExists:
                written = await self._add(key, snapshot, logs, shares)
            if self._on_kept is not None:
                kept = {worker: KeptLog.parse(written, worker) for worker in logs}
                self._on_kept(job, {worker: log for worker, log in kept.items() if log is not None})
        except (Refused, Conflict, NotFound) as error:
            logger.warning("%s: the logs can't be kept: %s", key, error)

    async def _add(
        self, key: JobKey, snapshot: Snapshot, logs: Mapping[int, KeptLog], shares: Mapping[int, int]
    ) -> Mapping[str, str | None]:
        """Put what was read behind what was kept of earlier attempts; returns the entries that were written."""
        job = snapshot.job
        found = await self._cluster.get(whole(CONFIG_MAPS), job.namespace, logs_name(job.name))
        metadata = found["metadata"]
        if owner_uid(metadata) != job.uid:
            logger.info("%s: %s belongs to somebody else", key, logs_name(job.name))
            return {}
        known = str((metadata.get("annotations") or {}).get(ATTEMPT_ANNOTATION, ""))
        if known == str(job.status.attempt):
            logger.debug("%s: the logs of the attempt were kept by an earlier operator.", key)
            return {}
        before = {str(name): str(text) for name, text in (found.get("data") or {}).items()}
        changes = joined(before, logs, shares, self._limit)
        await self._cluster.patch(
            CONFIG_MAPS,
            job.namespace,
            logs_name(job.name),
            {
                "metadata": {
                    "uid": metadata["uid"],
                    "resourceVersion": metadata.get("resourceVersion"),
                    "annotations": {ATTEMPT_ANNOTATION: str(job.status.attempt)},
                },
                "data": changes,
            },
        )
        return changes


def joined(
    before: Mapping[str, str], logs: Mapping[int, KeptLog], shares: Mapping[int, int], limit: int
) -> dict[str, str | None]:
    """Returns the changes that put new logs behind older ones: each in its share of the limit, others in what is left.

    None removes an entry: also the log of a worker that there is no room for.
    """
    changes: dict[str, str | None] = {}
    left = limit
    for worker, log in logs.items():
        old = KeptLog.parse(before, worker)
        entries = (log if old is None else old.followed_by(log)).ending(shares[worker]).to_data(worker)
        changes |= {log_key(worker): "", times_key(worker): None, **entries}
        left -= _size(entries)
    others = [worker for worker in kept_workers(before) if worker not in logs]
    for worker in others:
        old = KeptLog.parse(before, worker)
        share = max(0, left) // len(others)
        kept = None if old is None else old.ending(share)
        entries = {} if kept is None or not kept.lines else kept.to_data(worker)
        changes |= {log_key(worker): None, times_key(worker): None, **entries}
    return {name: text for name, text in changes.items() if text is not None or name in before}


def _size(entries: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for text in entries.values())


def share_out(pods: Sequence[PodView], limit: int, failed: set[str | None]) -> list[tuple[PodView, int]]:
    """Returns bytes for each pod's tail: full ones for pods that failed and worker 0, equal shares for the others."""
    first = [pod for pod in pods if pod.name in failed or pod.worker == 0]
    others = [pod for pod in pods if pod not in first]
    full = min(LONGEST_TAIL, limit // (2 * len(first) if others else len(first)) if first else 0)
    left = limit - full * len(first)
    share = min(LONGEST_TAIL, left // len(others)) if others else 0
    return [(pod, full) for pod in first] + [(pod, share) for pod in others if share > 0]


def _has_started(pod: PodView) -> bool:
    container = pod.worker_container
    return container is not None and (container.state != "waiting" or container.restarts > 0)
