"""If allowed, keeps the ends of workers' logs when a job ends or is suspended, and when a pod ends.

If a worker never started because an init container failed, the log of that container is kept instead.

The logs are in the ConfigMap `<job>-logs`, with one key for each worker (`worker-0.log`), for `kubectl dtj logs` and
plain kubectl. Because a ConfigMap holds at most 1 MiB, worker 0 and the failed workers get the largest shares, and the
others divide the rest. A later pod's output is added to the output of earlier pods; the agents mark the beginning of
each attempt. The lines' times are stored separately (api/kept_logs.py), so that the workers' lines can be merged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog, kept_workers, logs_name, stamped_line
from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.api.printable import listed
from trainmaster_operator.controller.apiserver.cluster import Cluster
from trainmaster_operator.controller.apiserver.errors import ClusterError, Conflict, NotFound, Refused
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.keeping.config_maps import Data, JobConfigMaps
from trainmaster_operator.controller.watching.resync import LOGS_CONTENT
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView, failed_init

logger = logging.getLogger(__name__)
# Limit in seconds on reading all logs of a job, because the pods hold GPUs during that time.
READING_SECONDS = 5.0
CONCURRENT_READS = 16
# Number of lines of a log to request.
TAIL_LINES = 2_000
# Seconds without growth after which a log counts as complete. It may lag behind the reports on the agents' stream.
SETTLE_SECONDS = 0.2
SETTLE_TRIES = 8
# Bytes of a followed log that are read at once, and then each second. Further output waits in the kubelet's file.
FOLLOWED_BURST, FOLLOWED_BYTES_A_SECOND = 1024 * 1024, 256 * 1024.0
# Bytes held in memory for each byte to keep, because with its time, a line is 31 bytes longer in the log than in the
# ConfigMap. The second number is a reserve of bytes, so that the beginning isn't dropped for every few bytes received.
STAMPED, TRIMMED = 4, 16 * 1024


@dataclass(eq=False)
class KeptLogs:
    """Saves the logs of a job that ends or is suspended, once for each attempt, and adds the logs of single pods.

    `limit` is the maximum number of bytes for all logs of a job. After a write, `on_kept` is called with the workers'
    logs as stored in the ConfigMap; for a deleted job, nothing is written, and `on_kept` is called with the last part
    of the logs.
    """

    config_maps: JobConfigMaps
    pod_logs: PodLogs
    _: KW_ONLY
    limit: int
    on_kept: Callable[[Job, Mapping[int, KeptLog]], None] | None = None
    # By the job's uid, the last attempt whose logs were saved, and the pods whose complete output was kept.
    _saved: dict[str, tuple[int, set[str]]] = field(default_factory=dict, init=False)

    def forget(self, uid: str) -> None:
        self._saved.pop(uid, None)

    def keeps(self, job: Job) -> bool:
        return self.limit > 0 and self.config_maps.allow_output(job)

    def has_all_of(self, job: Job, pod: PodView) -> bool:
        """Returns whether the pod's complete output is kept and its ranks no longer print."""
        return job.uid in self._saved and pod.uid in self._saved[job.uid][1]

    def shares(self, job: Job, workers: Collection[int]) -> dict[int, int]:
        """Returns the bytes to keep of each worker's log."""
        failed = {failure.worker for failure in job.status.failures if failure.worker is not None}
        return share_out(workers, self.limit, {0, *failed})

    async def save(self, key: JobKey, snapshot: Snapshot, *, complete: bool) -> None:
        """Save the logs of all pods. The job's end is delayed only briefly, and failures are only logged.

        With `complete`, the ranks have ended, and this method waits for their last lines.
        """
        job, attempt = snapshot.job, snapshot.job.status.attempt
        pods = [pod for pod in snapshot.observed.pods if has_started(pod) or failed_init(pod) is not None]
        saved = job.uid in self._saved and self._saved[job.uid][0] == attempt
        if not self.keeps(job) or saved or job.deleting or not pods:
            return
        shares = self.shares(job, {pod.worker for pod in pods})
        slots = asyncio.Semaphore(CONCURRENT_READS)
        # If the status names no workers, all workers train. Spares' last lines aren't waited for, because spares print
        # none.
        training = job.status.worker_order or [pod.worker for pod in pods]
        ended = {report.worker for report in snapshot.observed.reports if report.attempt == attempt and report.ended}
        read_whole: set[str] = set()

        async def read(pod: PodView) -> tuple[int, KeptLog] | None:
            async with slots:
                try:
                    trains = pod.worker in training
                    log = await self.pod_logs.read(key.namespace, pod, complete=complete and trains)
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
        await self.add(key, job, logs)
        self._saved[job.uid] = attempt, read_whole

    async def add(self, key: JobKey, job: Job, logs: Mapping[int, KeptLog], *, only_newer: bool = False) -> None:
        """Add workers' logs to the stored ones; a refusal is logged. Raises ClusterError.

        With `only_newer`, a log is left out unless it ends later than the stored one: otherwise the log of the same
        pod, or of a later pod, is already stored.
        """
        if not logs:
            return
        if job.deleting:
            # The job is deleted, and its ConfigMap with it.
            if self.on_kept is not None:
                self.on_kept(job, logs)
            return
        new = logs

        def change(before: Data) -> dict[str, str | None]:
            nonlocal new
            if only_newer:
                new = {worker: log for worker, log in logs.items() if _is_newer(log, KeptLog.parse(before, worker))}
            return joined(before, new, self.shares(job, {*kept_workers(before), *new}))

        try:
            data = await self.config_maps.write(job, logs_name(job.name), LOGS_CONTENT, change)
        except (Refused, Conflict, NotFound) as error:
            logger.warning("%s: the logs can't be kept: %s", key, error)
            return
        written = {worker: log for worker in new if (log := KeptLog.parse(data, worker)) is not None}
        if written and self.on_kept is not None:
            self.on_kept(job, written)


def joined(before: Data, logs: Mapping[int, KeptLog], shares: Mapping[int, int]) -> dict[str, str | None]:
    """Returns the changes that add new logs to older ones and cut each worker's log to its share.

    The value None removes an entry, such as the log of a worker without a share.
    """
    wanted: dict[str, str] = {}
    for worker, share in shares.items():
        log = (KeptLog.parse(before, worker) or KeptLog()).continued(logs.get(worker, KeptLog())).ending(share)
        if worker in logs or log.lines:
            wanted |= log.to_data(worker)
    changes: dict[str, str | None] = {name: text for name, text in wanted.items() if before.get(name) != text}
    return changes | {name: None for name in before if name not in wanted}


def _is_newer(log: KeptLog, kept: KeptLog | None) -> bool:
    return kept is None or not kept.times or not log.times or log.times[-1] > kept.times[-1]


def share_out(workers: Collection[int], limit: int, first: Collection[int]) -> dict[int, int]:
    """Returns the bytes to keep of each worker's log: `first` get full shares; the others divide the rest equally."""
    preferred = [worker for worker in workers if worker in first]
    others = len(workers) - len(preferred)
    full = min(LONGEST_LOG, limit // (2 * len(preferred) if others else len(preferred))) if preferred else 0
    share = min(LONGEST_LOG, (limit - full * len(preferred)) // others) if others else 0
    return {worker: full if worker in first else share for worker in sorted(workers)}


def has_started(pod: PodView) -> bool:
    """Returns whether a worker's container may have a log."""
    container = pod.worker_container
    return container is not None and (container.state != "waiting" or container.restarts > 0)


@dataclass(frozen=True)
class PodLogs:
    """Reads the current logs of workers' containers, or follows them until the container ends. Raises ClusterError."""

    cluster: Cluster

    async def read(self, namespace: str, pod: PodView, *, complete: bool) -> KeptLog:
        """Read a worker's log. With `complete`, its ranks have ended, and this method waits for their last lines.

        If the worker never started because an init container failed, read the log of this container.
        """
        failed = None if has_started(pod) else failed_init(pod)
        if failed is not None:
            name = failed[0].name
            text = await self._text(namespace, pod.name, container=name)
            time = text.partition(" ")[0]
            head = f"{time} --- init container {name} ---\n" if text else ""
            return kept_log(f"{head}{text}", cut=text.count("\n") + 1 >= TAIL_LINES)
        # The kubelet's limitBytes cuts off the *end*. So request more than is kept, and cut off the beginning later.
        container = pod.worker_container
        restarts = container.restarts if container is not None else 0
        state = container.state if container is not None else "running"
        if state == "running" and complete:
            text = await self._settled(namespace, pod.name, may_be_empty=restarts > 0)
        else:
            text = await self._text(namespace, pod.name)
        before = ""
        # While the container waits for its next start, `text` is the previous container's log.
        if (restarts > 0 and state in ("running", "terminated")) or not text:
            # An agent that reported by exiting left its ranks' output in the previous container's log. If the log is
            # empty, the container has restarted since the pod's last event.
            before = await self._text(namespace, pod.name, previous=True)
        cut = restarts > 1 or max(before.count("\n"), text.count("\n")) + 1 >= TAIL_LINES
        return kept_log("\n".join(filter(None, (before, text))), cut=cut)

    async def follow(self, namespace: str, pod: PodView, end: LogEnd, opened: Callable[[], None]) -> None:
        """Read a worker's log until the container ends; `opened` is called when reading begins."""
        container = pod.worker_container
        restarted = container is not None and container.restarts > 0
        if restarted and (before := await self._text(namespace, pod.name, previous=True)):
            end.feed(f"{before}\n".encode())
        clock = asyncio.get_running_loop().time
        began, size = clock(), 0
        async with self.cluster.followed_log(namespace, pod.name, tail_lines=TAIL_LINES) as chunks:
            opened()
            async for chunk in chunks:
                end.feed(chunk)
                size += len(chunk)
                wait = (size - FOLLOWED_BURST) / FOLLOWED_BYTES_A_SECOND - (clock() - began)
                if wait > 0:
                    await asyncio.sleep(wait)

    async def _settled(self, namespace: str, pod: str, *, may_be_empty: bool) -> str:
        """Read the log until it has stopped growing. Unless `may_be_empty` is set, an empty log is read again."""
        text: str | None = None
        for _ in range(SETTLE_TRIES):
            before, text = text, await self._text(namespace, pod)
            if text == before and (text or may_be_empty):
                break
            await asyncio.sleep(SETTLE_SECONDS)
        return text or ""

    async def _text(
        self, namespace: str, pod: str, *, previous: bool = False, container: str = WORKER_CONTAINER
    ) -> str:
        try:
            text = await self.cluster.pod_log(
                namespace,
                pod,
                tail_lines=TAIL_LINES,
                limit_bytes=16 * LONGEST_LOG,
                previous=previous,
                container=container,
            )
        except Refused:
            if previous:
                # The kubelet keeps the log of at most one earlier container. Without one, it answers 400.
                return ""
            raise
        return text.replace("\x00", "").removesuffix("\n")


class LogEnd:
    """Holds the end of a log that is being read. `limit` is the number of bytes that will be kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.data = bytearray()
        # Whether the beginning was dropped, and the number of lines that were read.
        self._cut = False
        self._count = 0

    def feed(self, data: bytes) -> None:
        self.data += data
        self._count += data.count(b"\n")
        if len(self.data) > STAMPED * self.limit + TRIMMED:
            del self.data[: len(self.data) - STAMPED * self.limit]
            self._cut = True

    def log(self) -> KeptLog:
        text = self.data.decode(errors="replace").replace("\x00", "")
        if self._cut:
            # The first line isn't complete.
            text = text.partition("\n")[2] or text
        # At most TAIL_LINES lines were requested, so a log with so many lines may have had more.
        return kept_log(text, cut=self._cut or self._count >= TAIL_LINES).ending(self.limit)


def kept_log(text: str, *, cut: bool) -> KeptLog:
    """Returns a container's log in its stored form."""
    # splitlines() would also split at other characters, such as a form feed.
    lines = [stamped_line(line) for line in text.removesuffix("\n").split("\n")] if text else []
    times = tuple(round(line.time * 1_000) for line in lines if line.time is not None)
    return KeptLog(tuple(line.text for line in lines), times if len(times) == len(lines) else None, cut)
