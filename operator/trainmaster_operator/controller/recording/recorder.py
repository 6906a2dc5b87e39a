"""The recorder decides which records of jobs are made, and when. Nothing waits for it, and it raises nothing.

- A job is recorded after each write of its status and each change of its spec. After the start, and after records were
  dropped, each job is also read from the API server and recorded once, a few jobs at a time.
- Deletions and ranks' reports are found by checking all jobs in the store once every `seconds`, a few jobs in each turn
  of the event loop. A job whose ranks haven't reported since its last sample is skipped.
- Evidence and logs are recorded after they were written to their ConfigMaps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import DeletedRecord, EvidenceRecord, LogRecord, PodPlace, SystemRecord
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.cluster import JOBS, RECORDED_JOBS, Cluster
from trainmaster_operator.controller.apiserver.errors import ClusterError
from trainmaster_operator.controller.background import FailureLog, end_tasks
from trainmaster_operator.controller.cache.large_jobs import LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey, ProgressView, Versioned, is_newer
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.recording.outbox import (
    MAX_BYTES,
    Outbox,
    WaitingRecord,
    facts_of,
    job_line,
    line_of,
    reports_of,
    sample_line,
)
from trainmaster_operator.controller.recording.sender import Sender
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Limit on the jobs that are read each second, while each job is recorded once.
JOBS_A_SECOND = 100.0
# Bytes in the outbox above which no jobs are read.
MUCH_WAITS = MAX_BYTES // 4
# Seconds until jobs are read again after a failure, and between two checks whether records were lost.
READ_AGAIN, CHECK_AGAIN = 30.0, 1.0
# Limit on the ranks of one job whose figures are recorded each second.
RANKS_A_SECOND = 1_000.0
# A sample of this many ranks takes 1 ms. Samples of as many ranks or more are computed in the thread for large jobs.
MANY_RANKS = 256
# A sample of the systems of this many workers with eight GPUs takes 1 ms.
MANY_WORKERS = 32
# Jobs that are checked in one turn of the event loop.
JOBS_A_TURN = 8


@dataclass(slots=True)
class _Known:
    key: JobKey
    identity: JobIdentity
    version: Versioned | None = None
    # None until the job was recorded once.
    generation: object = None
    facts: int = 0
    # The arrival time of the newest sampled report, and the earliest time (event loop's clock) of the next sample.
    sampled: float | None = None
    # The arrival time of the newest recorded sample of the workers' systems.
    system: float | None = None
    due: float = 0.0


@dataclass(eq=False)
class HistoryRecorder:
    """Records jobs, samples, evidence and logs. `sender` sends the content of the outbox."""

    outbox: Outbox
    sender: Sender
    cluster: Cluster
    store: Store
    namespaces: Sequence[str]
    thread: LargeJobThread
    _: KW_ONLY
    seconds: float
    now: Callable[[], float] = time.time
    _failures: FailureLog = field(default_factory=lambda: FailureLog(logger, "The history"), init=False)
    # By uid.
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _all_read: bool = field(default=False, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Begin to record and to send. Call this once the store contains all jobs."""
        # Remember all jobs now, because a job may be deleted before it is read.
        for job in self.store.jobs():
            self._known.setdefault(job.uid, _Known(JobKey(job.namespace, job.name), job.identity))
        works = (self._read_jobs, self._check, self.sender.run)
        self._tasks = [asyncio.create_task(self._forever(work), name=f"history {work.__name__}") for work in works]

    async def close(self) -> None:
        """Send waiting records for a limited time, and end."""
        await end_tasks(self._tasks)
        with self._guarded():
            await self.sender.finish()

    def written(self, raw: Mapping[str, Any]) -> None:
        """Record a job after a write of its status, from the API server's answer."""
        with self._guarded():
            self._record_job(raw)

    def watched(self, raw: Mapping[str, Any]) -> None:
        """Record a job from a watch, if its spec has changed since its last record."""
        with self._guarded():
            metadata = mapping(raw.get("metadata"))
            known = self._known.get(text(metadata.get("uid")))
            if LEFT_OUT in raw:
                # The answer to the next status write will contain the new spec.
                return
            if known is not None and known.generation not in (None, metadata.get("generation", 0)):
                self._record_job(raw)

    def kept_evidence(self, job: Job, attempt: int, evidence: str) -> None:
        with self._guarded():
            self._put(EvidenceRecord(self.now(), job.identity, attempt, evidence))

    def kept_logs(self, job: Job, logs: Mapping[int, KeptLog]) -> None:
        with self._guarded():
            for worker, log in logs.items():
                self._put(LogRecord(self.now(), job.identity, worker, log))

    def _record_job(self, raw: Mapping[str, Any]) -> None:
        metadata = mapping(raw.get("metadata"))
        namespace, name, uid = (text(metadata.get(field)) for field in ("namespace", "name", "uid"))
        key, version = JobKey(namespace, name), Versioned(uid, text(metadata.get("resourceVersion")))
        known = self._known.setdefault(uid, _Known(key, JobIdentity(namespace, name, uid)))
        if known.version is not None and not is_newer(version, known.version):
            return
        facts = facts_of(raw)
        if known.generation is not None and facts != known.facts:
            # An attempt may have ended. Sample its last reports now, because the next attempt's first report clears
            # them.
            self._sample_now(known)
        places = [PodPlace(pod.worker, pod.name, pod.node or "") for pod in self.store.pods(key)]
        line = job_line(self.now(), raw, places, large=self.store.is_large(key))
        known.version, known.generation, known.facts = version, metadata.get("generation", 0), facts
        self.outbox.put(WaitingRecord("job", uid, line, facts))

    def _put(self, record: DeletedRecord | EvidenceRecord | LogRecord) -> None:
        self.outbox.put(WaitingRecord("other", record.key.uid, line_of(record)))

    async def _check(self) -> None:
        clock = asyncio.get_running_loop().time
        began, jobs = clock(), list(self._known.items())
        for number, (uid, known) in enumerate(jobs):
            if number % JOBS_A_TURN == 0:
                await asyncio.sleep(max(0.0, began + self.seconds * number / len(jobs) - clock()))
            version = self.store.version(known.key, JOBS, known.key.name)
            if version is None or version.uid != uid:
                del self._known[uid]
                self._put(DeletedRecord(self.now(), known.identity))
            elif known.generation is not None and clock() >= known.due:
                await self._sample(known)
                await self._sample_system(known)
        await asyncio.sleep(max(0.0, began + self.seconds - clock()))

    async def _sample(self, known: _Known) -> None:
        """Record the ranks' reports since the last sample, if there are any."""
        with self._guarded():
            view = self._news(known)
            if view is None:
                return
            make = partial(sample_line, view.at, known.identity, view.attempt, reports_of(view.workers))
            line = make() if view.ranks < MANY_RANKS else await self.thread.run(make)
            if self._known.get(known.identity.uid) is known:
                self.outbox.put(WaitingRecord("sample", known.identity.uid, line))

    async def _sample_system(self, known: _Known) -> None:
        """Record the workers' systems, if a sample arrived since the last record."""
        with self._guarded():
            view = self.store.system(known.key)
            if view is None or view.at == known.system:
                return
            known.system, samples = view.at, dict(view.workers)

            def make() -> bytes:
                return line_of(SystemRecord.of(view.at, known.identity, view.attempt, samples))

            line = make() if len(samples) < MANY_WORKERS else await self.thread.run(make)
            if self._known.get(known.identity.uid) is known:
                self.outbox.put(WaitingRecord("sample", known.identity.uid, line))

    def _sample_now(self, known: _Known) -> None:
        """Record the ranks' new reports at once, if there are few ranks."""
        view = self.store.progress(known.key)
        if view is not None and view.ranks < MANY_RANKS and (view := self._news(known)) is not None:
            line = sample_line(view.at, known.identity, view.attempt, reports_of(view.workers))
            self.outbox.put(WaitingRecord("sample", known.identity.uid, line))

    def _news(self, known: _Known) -> ProgressView | None:
        """Returns the ranks' reports if any arrived since the last sample, and remembers their time."""
        view, job = self.store.progress(known.key), self.store.version(known.key, JOBS, known.key.name)
        if view is None or job is None or job.uid != known.identity.uid or view.at == known.sampled:
            return None
        known.sampled = view.at
        earliest = asyncio.get_running_loop().time() - self.seconds
        known.due = max(known.due, earliest) + view.ranks / RANKS_A_SECOND
        return view if view.ranks else None

    async def _read_jobs(self) -> None:
        """Record each job once, and again after records were lost, as soon as the outbox has room."""
        await asyncio.sleep(CHECK_AGAIN)
        if self.outbox.size > MUCH_WAITS:
            return
        if self.outbox.lost:
            self.outbox.lost = self._all_read = False
            for known in self._known.values():
                known.version = None
        if not self._all_read:
            try:
                self._all_read = await self._read_all()
            except ClusterError as error:
                logger.info("The history: jobs can't be read, next try in %g s: %s", READ_AGAIN, error)
                await asyncio.sleep(READ_AGAIN)

    async def _read_all(self) -> bool:
        """Record each job whose current state isn't recorded; returns whether there was room for all jobs."""
        for namespace in self.namespaces or (None,):
            async for page in self.cluster.pages(RECORDED_JOBS, namespace):
                for raw in page:
                    metadata = mapping(raw.get("metadata"))
                    name = text(metadata.get("name"))
                    version = self.store.version(JobKey(text(metadata.get("namespace")), name), JOBS, name)
                    if version is not None and version.uid == metadata.get("uid"):
                        self.written(raw)
                if self.outbox.size > MUCH_WAITS:
                    return False
                await asyncio.sleep(len(page) / JOBS_A_SECOND)
        return True

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with self._guarded():
                await work()
                continue
            await asyncio.sleep(READ_AGAIN)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log a bug of ours instead of raising it, because a record matters less than the work that it describes."""
        try:
            yield
        except Exception as error:
            self._failures.report("a record can't be made", error)
