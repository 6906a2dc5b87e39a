"""Keeps the ends of workers' logs, where that is allowed: when a job ends or is suspended, and of each pod that ends.

They are in the ConfigMap `<job>-logs`, one key a worker (`worker-0.log`), owned by the job, so that `kubectl dtj logs`
and plain kubectl can show them as long as the job exists. A ConfigMap holds at most 1 MiB: the workers that failed and
worker 0 get the largest shares, the others split what is left. What later pods print is added to what was kept of
earlier ones; the agents print where an attempt begins. When each line was printed is kept beside it
(api/kept_logs.py), so that the workers' lines can be merged. The label `trainmaster.dev/content: logs` keeps it out of
the operator's watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog, kept_workers, logs_name
from trainmaster_operator.api.printable import listed
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, Cluster, whole
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.views import owner_uid
from trainmaster_operator.controller.keeping.owned_config_map import owned_config_map
from trainmaster_operator.controller.keeping.pod_logs import PodLogs
from trainmaster_operator.controller.watching.watched import LOGS_CONTENT
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView

logger = logging.getLogger(__name__)

# Seconds for all logs together: the pods hold GPUs while they are read.
READING_SECONDS = 5.0
CONCURRENT_READS = 16
# The pods of a job end one after the other, and so several add their logs at a time.
WRITES = 5


def allows_logs(job: Job) -> bool:
    """Returns whether the job lets its output be kept (runPolicy.keepLogs). What can't be read hasn't allowed it."""
    return job.spec is not None and job.spec.run_policy.keep_logs


class OnKept(Protocol):
    """Gets the workers' logs that were written, as they stand in the ConfigMap; of a deleted job the last part."""

    def __call__(self, job: Job, logs: Mapping[int, KeptLog]) -> None: ...


class KeptLogs:
    """Saves the logs of a job that ends or is suspended, once in an attempt, and adds those of single pods."""

    def __init__(self, cluster: Cluster, pod_logs: PodLogs, *, limit: int, on_kept: OnKept | None = None) -> None:
        self._cluster = cluster
        self._pod_logs = pod_logs
        self._on_kept = on_kept
        self._limit = limit
        # By uid, the attempt whose logs were saved last.
        self._saved: dict[str, int] = {}
        # By the job's uid, the pods of which everything was kept at its end.
        self._complete: dict[str, set[str]] = {}

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._saved.pop(uid, None)
        self._complete.pop(uid, None)

    @property
    def recorded(self) -> bool:
        """Returns whether logs are kept in a history too, where they outlive their job."""
        return self._on_kept is not None

    def keeps(self, job: Job) -> bool:
        """Returns whether the job's output is kept."""
        return self._limit > 0 and allows_logs(job)

    def has_all_of(self, job: Job, pod: PodView) -> bool:
        """Returns whether everything is kept that the pod's ranks have printed and will print."""
        return pod.uid in self._complete.get(job.uid, ())

    def shares(self, job: Job, workers: Collection[int]) -> dict[int, int]:
        """Returns the bytes that are kept of each worker's log."""
        failed = {failure.worker for failure in job.status.failures if failure.worker is not None}
        return share_out(workers, self._limit, {0, *failed})

    async def __call__(self, key: JobKey, snapshot: Snapshot, *, complete: bool = True) -> None:
        """Save what there is. Never in the way of the job's end: what can't be read or written is logged.

        `complete`: the ranks have ended, so that it is worth waiting for their last lines.
        """
        job = snapshot.job
        attempt = job.status.attempt
        pods = [pod for pod in snapshot.observed.pods if has_started(pod)]
        if not self.keeps(job) or self._saved.get(job.uid) == attempt or job.deleting or not pods:
            return
        shares = self.shares(job, {pod.worker for pod in pods})
        slots = asyncio.Semaphore(CONCURRENT_READS)
        # Where the status names none, all of them train. A spare prints no last lines.
        training = job.status.worker_order or [pod.worker for pod in pods]
        ended = {report.worker for report in snapshot.observed.reports if report.attempt == attempt and report.ended}
        read_whole: set[str] = set()

        async def read(pod: PodView) -> tuple[int, KeptLog] | None:
            async with slots:
                try:
                    trains = pod.worker in training
                    log = await self._pod_logs.read(key.namespace, pod, complete=complete and trains)
                except (ClusterError, TimeoutError) as error:
                    logger.info("%s: the log of %s isn't kept: %s", key, pod.name, error)
                    return None
            if complete and (pod.worker in ended or not trains):
                read_whole.add(pod.uid)
            return (pod.worker, log.ending(shares[pod.worker])) if log.lines or trains else None

        tasks = {asyncio.create_task(read(pod)): pod for pod in pods if shares[pod.worker]}
        done, late = await asyncio.wait(tasks, timeout=READING_SECONDS)
        for task in late:
            task.cancel()
        if late:
            names = listed(sorted(tasks[task].name for task in late))
            logger.warning("%s: the log of %s isn't kept: it wasn't read within %g s", key, names, READING_SECONDS)
        logs = dict(entry for task in done if (entry := task.result()) is not None)
        self._complete[job.uid] = read_whole
        await self.add(key, job, logs)
        self._saved[job.uid] = attempt

    async def add(self, key: JobKey, job: Job, logs: Mapping[int, KeptLog], *, only_newer: bool = False) -> None:
        """Put workers' logs behind what was kept of them before; what is refused is logged. Raises ClusterError.

        `only_newer`: a log that ends no later than what is kept is of a pod that was read, or of one before it.
        """
        if not logs:
            return
        if job.deleting:
            # A ConfigMap would go with the job.
            if self._on_kept is not None:
                self._on_kept(job, logs)
            return
        try:
            written = await self._write(key, job, logs, only_newer=only_newer)
        except (Refused, Conflict, NotFound) as error:
            logger.warning("%s: the logs can't be kept: %s", key, error)
            return
        if written and self._on_kept is not None:
            self._on_kept(job, written)

    async def _write(
        self, key: JobKey, job: Job, logs: Mapping[int, KeptLog], *, only_newer: bool
    ) -> Mapping[int, KeptLog]:
        """Write logs; returns what was written of these workers. Raises ClusterError."""
        name = logs_name(job.name)
        failure: ClusterError | None = None
        for _ in range(WRITES):
            try:
                changes, kept = self._joined(job, {}, logs)
                data = {entry: text for entry, text in changes.items() if text is not None}
                await self._cluster.create(CONFIG_MAPS, job.namespace, owned_config_map(job, name, LOGS_CONTENT, data))
                return kept
            except AlreadyExists:
                pass
            try:
                found = await self._cluster.get(whole(CONFIG_MAPS), job.namespace, name)
                metadata = found["metadata"]
                if owner_uid(metadata) != job.uid:
                    logger.info("%s: %s belongs to somebody else", key, name)
                    return {}
                before = {str(entry): str(text) for entry, text in (found.get("data") or {}).items()}
                if only_newer:
                    logs = {
                        worker: log for worker, log in logs.items() if _is_newer(log, KeptLog.parse(before, worker))
                    }
                changes, kept = self._joined(job, before, logs)
                if not changes:
                    return {}
                version = metadata.get("resourceVersion")
                body = {"metadata": {"uid": metadata["uid"], "resourceVersion": version}, "data": changes}
                await self._cluster.patch(CONFIG_MAPS, job.namespace, name, body)
                return kept
            except (Conflict, NotFound) as error:
                failure = error
        assert failure is not None
        raise failure

    def _joined(
        self, job: Job, before: Mapping[str, str], logs: Mapping[int, KeptLog]
    ) -> tuple[dict[str, str | None], dict[int, KeptLog]]:
        shares = self.shares(job, {*kept_workers(before), *logs})
        return joined(before, logs, shares)


def joined(
    before: Mapping[str, str], logs: Mapping[int, KeptLog], shares: Mapping[int, int]
) -> tuple[dict[str, str | None], dict[int, KeptLog]]:
    """Returns the changes that put new logs behind older ones, each worker's in its share, and the new logs then.

    None removes an entry: also the log of a worker that there is no room for.
    """
    wanted: dict[str, str] = {}
    kept: dict[int, KeptLog] = {}
    for worker, share in shares.items():
        log = KeptLog.parse(before, worker) or KeptLog()
        if worker in logs:
            log = log.continued(logs[worker])
        log = log.ending(share)
        if worker in logs:
            kept[worker] = log
        if worker in logs or log.lines:
            wanted |= log.to_data(worker)
    changes: dict[str, str | None] = {name: text for name, text in wanted.items() if before.get(name) != text}
    changes |= {name: None for name in before if name not in wanted}
    return changes, kept


def _is_newer(log: KeptLog, kept: KeptLog | None) -> bool:
    return kept is None or not kept.times or not log.times or log.times[-1] > kept.times[-1]


def share_out(workers: Collection[int], limit: int, first: Collection[int]) -> dict[int, int]:
    """Returns bytes for each worker's log: full ones for the first, equal shares of what is left for the others."""
    preferred = [worker for worker in workers if worker in first]
    others = len(workers) - len(preferred)
    full = min(LONGEST_LOG, limit // (2 * len(preferred) if others else len(preferred))) if preferred else 0
    share = min(LONGEST_LOG, (limit - full * len(preferred)) // others) if others else 0
    return {worker: full if worker in first else share for worker in sorted(workers)}


def has_started(pod: PodView) -> bool:
    """Returns whether a worker's container has, or may have, a log."""
    container = pod.worker_container
    return container is not None and (container.state != "waiting" or container.restarts > 0)
