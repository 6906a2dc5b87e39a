"""The workers take a job's key and a snapshot of the job, decide, and pass the decision to the executor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from trainmaster_operator.api.v1alpha1 import JobSpec, JobStatus
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.apiserver.errors import (
    ClusterError,
    Conflict,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from trainmaster_operator.controller.cache.large_jobs import LargeJobThread
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders.streams import LeaderStreams
from trainmaster_operator.controller.leaders.targets import stream_target
from trainmaster_operator.controller.lookups import Lookups
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.controller.workqueue import WorkQueue
from trainmaster_operator.controller.writing.executor import Executor
from trainmaster_operator.reconciling.decision import Decision
from trainmaster_operator.reconciling.observed.snapshot import Job, Observed
from trainmaster_operator.reconciling.transition import condition
from trainmaster_operator.rendering import Settings as RenderingSettings
from trainmaster_operator.serving.logs import current_attempt, current_job

logger = logging.getLogger(__name__)


# The type of `reconciling.decide`: it takes a job, the job's observed state, the time and the settings.
Decide = Callable[[Job, Observed, float, RenderingSettings], Decision]


@dataclass(eq=False)
class Reconciler:
    """Runs a pass for each key in the queue.

    A failed pass is repeated with the key's own back-off; no error ends a worker.
    """

    store: Store
    queue: WorkQueue[JobKey]
    executor: Executor
    streams: LeaderStreams
    lookups: Lookups
    metrics: OperatorMetrics
    decide: Decide
    rendering: RenderingSettings
    _: KW_ONLY
    # Functions of the parts that keep data about jobs, called with the uid of each deleted job.
    forget: Sequence[Callable[[str], None]]
    thread: LargeJobThread
    # Called with each job's spec, so that the type of object that the job's gang scheduler uses is watched.
    want: Callable[[JobSpec | None], None] = lambda spec: None
    now: Callable[[], float] = time.time
    # Keys of large jobs that wait for `work_large`; the queue still counts them as being worked on.
    _large: WorkQueue[JobKey] = field(default_factory=WorkQueue, init=False)
    # The uid of each job that had a pass. After the job's deletion, `forget` is called with this uid.
    _known: dict[JobKey, str] = field(default_factory=dict, init=False)
    # By the uid of each recovering job: when the operator opened the job's next attempt (time.monotonic).
    _recovering: dict[str, float] = field(default_factory=dict, init=False)

    async def work(self) -> None:
        """Run one worker, until the queue is closed."""
        async for key, waited in self.queue:
            self.metrics.queue_seconds.observe(waited)
            if self.store.is_large(key):
                # Only the large workers wait for the thread that all large jobs share.
                self._large.add(key)
                continue
            await self._turn(key)
            # A pass that writes nothing never yields to the event loop. Without this sleep, thousands of such passes
            # after the operator's restart would block probes, streams and watches.
            await asyncio.sleep(0)
        self._large.close()

    async def work_large(self) -> None:
        """Run one worker for large jobs, until the queue is closed."""
        async for key, _ in self._large:
            self._large.done(key)
            await self._turn(key)

    async def _turn(self, key: JobKey) -> None:
        current_job.set(str(key))
        current_attempt.set(0)
        started = time.monotonic()
        result = "ok"
        try:
            wait = await self._pass(key)
            self.queue.forget(key)
            if wait is not None:
                self.queue.add_after(key, wait)
        except (Conflict, NotFound) as error:
            result = "conflict" if isinstance(error, Conflict) else "gone"
            logger.debug("Somebody changed or deleted it meanwhile: %s", error)
            self.queue.add_rate_limited(key)
        except ClusterError as error:
            busy = isinstance(error, TooManyRequests | Unavailable)
            result, problem = ("busy", "The API server is busy") if busy else ("error", "A write failed")
            wait = self.queue.add_rate_limited(key, at_least=error.retry_after or 0.0)
            logger.warning("%s, next try in %.1f s: %s", problem, wait, error)
        except Exception:
            # A bug of ours must not stop the other jobs. It is counted and logged, and the pass is repeated after
            # longer and longer delays.
            result = "bug"
            wait = self.queue.add_rate_limited(key)
            logger.exception("The pass failed, next try in %.1f s.", wait)
        finally:
            self.queue.done(key)
        self.metrics.reconciles.labels(result=result).inc()
        self.metrics.reconcile_seconds.observe(time.monotonic() - started)

    async def _pass(self, key: JobKey) -> float | None:
        """Decide, and carry out the decision; returns the seconds until the job's next pass."""
        snapshot = self.store.snapshot(key)
        while snapshot is not None and await self.lookups.before_decision(key, snapshot):
            # The job may have changed during the lookups, so other lookups may be needed.
            snapshot = self.store.snapshot(key)
        if snapshot is None:
            self._gone(key)
            return None
        job = snapshot.job
        if self._known.get(key) not in (None, job.uid):
            self._gone(key)
        self._known[key] = job.uid
        current_attempt.set(job.status.attempt)
        self.want(job.spec)
        deciding = partial(self.decide, job, snapshot.observed, self.now(), self.rendering)
        decision = await self.thread.run(deciding) if job.large else deciding()
        if job.large and self.store.version(key, JOBS, key.name) != snapshot.version:
            # Deciding in the thread takes a while. If the job has changed meanwhile, decide again.
            self.queue.add(key)
            return None
        if decision.status.attempt > job.status.attempt:
            # Open the stream now, because reports on the attempt may arrive before the pass ends, and because another
            # worker may lead the new attempt.
            target = stream_target(snapshot, decision.status)
            if target is not None:
                self.streams.watch(key, target)
        outcome = await self.executor.execute(key, snapshot, decision)
        if outcome.wrote_status:
            self._report_transition(job.uid, job.status, decision.status)
        after = self.store.snapshot(key)
        self.streams.watch(key, stream_target(after, decision.status) if after is not None else None)
        lookup = await self.lookups.after_decision(key, after) if after is not None else None
        waits = (decision.requeue_after, outcome.retry_after, lookup)
        return min((wait for wait in waits if wait is not None), default=None)

    def _gone(self, key: JobKey) -> None:
        self.streams.watch(key, None)
        uid = self._known.pop(key, None)
        if uid is not None:
            self._recovering.pop(uid, None)
            for forget in self.forget:
                forget(uid)

    def _report_transition(self, uid: str, old: JobStatus, new: JobStatus) -> None:
        self.metrics.count_transition(old, new)
        if new.attempt > old.attempt > 0 and new.continues is None:
            self._recovering.setdefault(uid, time.monotonic())
        if new.phase != old.phase or new.attempt != old.attempt:
            why = ended_because(old, new)
            members = "" if new.training_with is None else f" with {new.training_with}"
            ended = f": {why}" if why else ""
            logger.info("%s%s, attempt %d, restarts %d%s", new.phase, members, new.attempt, new.restarts, ended)
        if new.phase == "Running" and (since := self._recovering.pop(uid, None)) is not None:
            self.metrics.recovery_seconds.observe(time.monotonic() - since)


def ended_because(old: JobStatus, new: JobStatus) -> str:
    """Returns why the job, or its last attempt, ended. The text is only for the operator's log."""
    failed = condition(new.conditions, "Failed")
    if new.phase == "Failed" and failed is not None:
        return f"{failed.reason}: {failed.message}"
    failure = new.failures[0] if new.failures else None
    stopped = new.phase not in ("Running", "Succeeded") or (new.continues is not None and new.attempt > old.attempt)
    if failure is not None and failure.attempt >= old.attempt and stopped:
        return f"{failure.reason}: {failure.message}"
    return ""
