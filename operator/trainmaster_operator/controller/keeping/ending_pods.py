"""Keeps the last output of ending pods, by following the log of each ending pod until its container has ended.

The kubelet removes a pod's log with the pod, and there is no other copy. The cause of the pod's end (a drain, a
preemption, a node shutdown, kubectl, a StatefulSet that is scaled down) doesn't matter. Before the operator itself
deletes a pod, it begins to read the pod's log. Each pass over a job requests the logs of all its ending pods.

If a log couldn't be followed (no operator ran, or the kubelet couldn't be reached), the operator keeps the output that
the agent sent to its leader when the agent ended (`report`). Leaders hold this output and send it to each new operator.

At most PLACES logs are followed at once, and at most PLACES_OF_ONE in a namespace. If all places are taken, the oldest
log of the namespace with the most logs is dropped. Only the operator's own deletions of pods wait until the reads have
started, for at most OPEN_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.background import end_tasks
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.logs import KeptLogs, LogEnd, PodLogs, has_started
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView
from trainmaster_operator.wire.stream import OutputLine

logger = logging.getLogger(__name__)

# Limits on the logs that are followed at once: in total, and in one namespace.
PLACES, PLACES_OF_ONE = 64, 16
# Limit on the pods of one job that are being followed or wait for a place.
WAITING = 64
# Seconds that a deletion waits for the start of the reads.
OPEN_SECONDS = 1.0
# Seconds to follow a log after the end of the pod's grace period, at which the kubelet kills the container.
SLACK_SECONDS = 30.0
# Seconds to follow the logs of a deleted job, whose pods' deadlines aren't known.
GONE_SECONDS = 600.0
# Seconds until a failed read of a log is repeated.
AGAIN_SECONDS = 1.0
# Seconds during which the outputs of several pods are collected into one write.
TOGETHER_SECONDS = 0.3
# Seconds before the agent's output is used instead of the pod's log, because the watch may show the pod's end late.
REPORTED_SECONDS = 3.0
# Seconds between two outputs of agents that are accepted from the same job, because a leader may invent any number of
# pods.
REPORTED_AGAIN = 30.0
# Number of tries to write the same output.
TRIES = 5


@dataclass(eq=False)
class _Followed:
    """Holds a log that is or was followed."""

    pod: PodView
    # The attempt during which the pod began to end.
    attempt: int
    begun_at: float
    end: LogEnd
    task: asyncio.Task[None] = field(init=False)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    # Whether the container has ended and its complete log was read.
    complete: bool = False

    @property
    def runs(self) -> bool:
        return not self.task.done()


class _Ended(NamedTuple):
    """Holds the last output of a worker's pod until it is written."""

    worker: int
    attempt: int
    log: KeptLog
    # Whether the agent sent the output. Part of it may then be kept already.
    reported: bool = False


@dataclass(eq=False)
class _OfJob:
    """Holds a job as last seen, its followed logs (by the pods' uids), and output that isn't written yet."""

    key: JobKey
    job: Job
    pods: Sequence[PodView] = ()
    followed: dict[str, _Followed] = field(default_factory=dict)
    # By worker: the uid of the pod whose agent sent its last output, and the task that first waits for the pod's log.
    reported: dict[int, tuple[str, asyncio.Task[None]]] = field(default_factory=dict)
    # The time (the event loop's clock) from which more output of agents is accepted.
    reported_again: float = 0.0
    ended: list[_Ended] = field(default_factory=list)
    writing: asyncio.Task[None] | None = None
    # Whether the job is deleted. Later output is then only sent to the history.
    gone: bool = False
    finishing: asyncio.Task[None] | None = None

    def cancel_reports(self) -> None:
        for _, task in self.reported.values():
            task.cancel()


@dataclass(eq=False)
class LastOutput:
    """Follows the logs of pods that end, and passes their output to `logs` and `evidence`."""

    store: Store
    pod_logs: PodLogs
    logs: KeptLogs
    evidence: EvidenceKeeper
    now: Callable[[], float] = time.time
    # By the job's uid.
    _jobs: dict[str, _OfJob] = field(default_factory=dict, init=False)
    _places: LogPlaces = field(default_factory=lambda: LogPlaces(), init=False)

    def follow(self, key: JobKey, snapshot: Snapshot) -> None:
        """Follow the log of each ending pod."""
        known = self._of(key, snapshot)
        there = {pod.uid for pod in known.pods}
        known.followed = {uid: one for uid, one in known.followed.items() if one.runs or uid in there}
        self._begin(known, _is_ending)

    async def before_deletion(self, key: JobKey, snapshot: Snapshot, pods: Iterable[PodView]) -> None:
        """Begin to read the logs of pods that are about to be deleted, and wait a moment until the logs are open."""
        uids = {pod.uid for pod in pods}
        begun = self._begin(self._of(key, snapshot), lambda pod: pod.uid in uids)
        with suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                for one in begun:
                    await one.opened.wait()

    def report(self, key: JobKey, uid: str, line: OutputLine) -> None:
        """Record the output that an agent sent when it ended, in case its pod's log can't be read."""
        snapshot = self.store.snapshot(key)
        if snapshot is None or snapshot.job.uid != uid or not self.logs.keeps(snapshot.job):
            return
        known = self._of(key, snapshot)
        pod, waiting = known.reported.get(line.worker, ("", None))
        if pod == line.uid:
            # This output is known already, because each new stream begins with it.
            return
        if waiting is not None:
            waiting.cancel()
        task = asyncio.create_task(self._take_report(known, line), name=f"last output {key} {line.worker}")
        known.reported[line.worker] = line.uid, task

    def forget(self, uid: str) -> None:
        """Forget a deleted job. With a history, this happens only after its pods have printed their last lines."""
        known = self._jobs.get(uid)
        if known is None:
            return
        if self.logs.on_kept is not None and self.logs.keeps(known.job):
            # A history also keeps the output of deleted jobs, so the pods are followed to their end.
            known.job, known.gone = replace(known.job, deleting=True), True
            self._begin(known, lambda _pod: True)
            known.finishing = asyncio.create_task(self._finish(known), name=f"last output of {known.key}, deleted")
            return
        del self._jobs[uid]
        known.cancel_reports()
        for task in (known.writing, *(one.task for one in known.followed.values())):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Write the output read so far, and end. The next operator follows the pods that are still ending."""
        jobs = list(self._jobs.values())
        for known in jobs:
            # Outputs that agents sent can be dropped, because the next operator receives them too.
            known.cancel_reports()
        # Each task passes on the output that it has read.
        await end_tasks(one.task for known in jobs for one in known.followed.values())
        writing = [known.writing for known in jobs if known.writing is not None]
        if writing:
            _, late = await asyncio.wait(writing, timeout=OPEN_SECONDS)
            for task in late:
                task.cancel()

    def _of(self, key: JobKey, snapshot: Snapshot) -> _OfJob:
        known = self._jobs.setdefault(snapshot.job.uid, _OfJob(key, snapshot.job))
        known.job, known.pods = snapshot.job, snapshot.observed.pods
        return known

    async def _take_report(self, known: _OfJob, line: OutputLine) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(REPORTED_SECONDS, known.reported_again - clock()))
        known.reported_again = max(known.reported_again, clock() + REPORTED_AGAIN)
        one = known.followed.get(line.uid)
        if one is not None:
            await asyncio.wait({one.task})
        if one is None or not one.complete:
            log = KeptLog(line.lines, line.times, cut=True)
            self._ended(known, _Ended(line.worker, line.attempt, log, reported=True))

    async def _finish(self, known: _OfJob) -> None:
        await asyncio.gather(*(one.task for one in known.followed.values()), return_exceptions=True)
        if known.writing is not None:
            await asyncio.wait({known.writing})
        known.cancel_reports()
        self._jobs.pop(known.job.uid, None)

    def _begin(self, known: _OfJob, is_chosen: Callable[[PodView], bool]) -> list[_Followed]:
        """Begin to follow the chosen pods that aren't followed yet; returns the logs of these pods."""
        job = known.job
        if not self.logs.keeps(job):
            return []
        wanted = [
            pod
            for pod in known.pods
            if is_chosen(pod)
            and has_started(pod)
            and pod.uid not in known.followed
            and not self.logs.has_all_of(job, pod)
        ]
        if not wanted:
            return []
        shares = self.logs.shares(job, {pod.worker for pod in known.pods})
        # Begin with the workers that have the largest shares.
        wanted.sort(key=lambda pod: (-shares[pod.worker], pod.worker))
        room = WAITING - sum(one.runs for one in known.followed.values())
        begun = []
        for pod in wanted[: max(0, room)]:
            one = _Followed(pod, job.status.attempt, self.now(), LogEnd(shares[pod.worker]))
            one.task = asyncio.create_task(self._follow(known, one), name=f"log {known.key} {pod.name}")
            known.followed[pod.uid] = one
            begun.append(one)
        return begun

    async def _follow(self, known: _OfJob, one: _Followed) -> None:
        try:
            async with self._places.one(known.key.namespace):
                one.complete = await self._read(known, one)
        finally:
            one.opened.set()
            there = None if known.gone else self._there(known.key, one.pod)
            if there is not None and not _is_ending(there):
                # The pod isn't ending, or not yet, so it may have to be followed later.
                one.complete = False
                known.followed.pop(one.pod.uid, None)
            self._ended(known, _Ended(one.pod.worker, one.attempt, one.end.log()))

    async def _read(self, known: _OfJob, one: _Followed) -> bool:
        """Read a log until its container has ended; returns whether the log was read completely."""
        while (seconds := self._seconds_left(known, one)) > 0:
            end = LogEnd(one.end.limit)
            try:
                async with asyncio.timeout(seconds):
                    await self.pod_logs.follow(known.key.namespace, one.pod, end, one.opened.set)
                return True
            except TimeoutError:
                # The grace period may have become longer.
                pass
            except NotFound:
                break
            except ClusterError as error:
                logger.info("%s: the log of %s can't be followed: %s", known.key, one.pod.name, error)
                # A deletion must not wait for an unreachable kubelet.
                one.opened.set()
                await asyncio.sleep(AGAIN_SECONDS)
            finally:
                if end.data:
                    one.end = end
        return False

    def _there(self, key: JobKey, pod: PodView) -> PodView | None:
        return next((one for one in self.store.pods(key) if one.uid == pod.uid), None)

    def _seconds_left(self, known: _OfJob, one: _Followed) -> float:
        if known.gone:
            return one.begun_at + GONE_SECONDS - self.now()
        there = self._there(known.key, one.pod)
        if there is None:
            return 0.0
        return (there.deadline or one.begun_at) + SLACK_SECONDS - self.now()

    def _ended(self, known: _OfJob, ended: _Ended) -> None:
        if ended.log.lines:
            known.ended.append(ended)
            if known.writing is None or known.writing.done():
                known.writing = asyncio.create_task(self._write(known), name=f"last output {known.key}")

    async def _write(self, known: _OfJob) -> None:
        while known.ended:
            await asyncio.sleep(TOGETHER_SECONDS)
            ended, known.ended = known.ended, []
            for tries in range(TRIES):
                try:
                    for reported in (False, True):
                        some = [one for one in ended if one.reported == reported]
                        await self.logs.add(known.key, known.job, _together(some), only_newer=reported)
                    for one in ended:
                        await self.evidence.add_output(known.job, one.attempt, one.worker, one.log)
                    break
                except ClusterError as error:
                    logger.info("%s: the last output can't be kept: %s", known.key, error)
                    await asyncio.sleep(AGAIN_SECONDS * 2.0**tries)


class LogPlaces:
    """Limits the followed logs to PLACES, and to PLACES_OF_ONE in a namespace. Further logs of the namespace wait."""

    def __init__(self) -> None:
        self._taken: defaultdict[str, list[asyncio.Task[object]]] = defaultdict(list)
        self._slots: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def one(self, namespace: str) -> AsyncIterator[None]:
        """Take a place. If none is free, cancel the oldest task of the namespace with the most tasks."""
        async with self._slots.setdefault(namespace, asyncio.Semaphore(PLACES_OF_ONE)):
            if sum(map(len, self._taken.values())) >= PLACES:
                max(self._taken.values(), key=len).pop(0).cancel()
            task = asyncio.current_task()
            assert task is not None
            self._taken[namespace].append(task)
            try:
                yield
            finally:
                with suppress(ValueError):
                    self._taken[namespace].remove(task)
                if not self._taken[namespace]:
                    del self._taken[namespace]
                    self._slots.pop(namespace, None)


def _together(ended: Iterable[_Ended]) -> dict[int, KeptLog]:
    """Returns the logs by worker. If a worker had several pods, their logs are joined."""
    logs: dict[int, KeptLog] = {}
    for one in ended:
        logs[one.worker] = logs.get(one.worker, KeptLog()).continued(one.log)
    return logs


def _is_ending(pod: PodView) -> bool:
    """Returns whether a pod's containers end permanently: it is being deleted, or its phase is Failed or Succeeded."""
    return pod.deleting or pod.phase in ("Failed", "Succeeded")
