"""Sends the live answer about one job: the job, its attempts, pods, events and ranks, each when it changes.

All reads use the viewer's own token. A deleted job is read from the history. Attempts are read from the history, or
from the failures in the status if there is no history. The status is slightly ahead of the history, so the status
decides how an attempt ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import ClientError, NoCluster, NotAllowed
from trainmaster.client.job import TrainingJob
from trainmaster.client.operator_sign import written_at
from trainmaster.client.permission import Access
from trainmaster.client.sentences import KEEPING, lost_checkpoints, start_of_resumed
from trainmaster.client.watching import watch_job
from trainmaster.dashboard.board import Row, row_of
from trainmaster.dashboard.figures import Figures, seconds_between
from trainmaster.dashboard.objects import asked_pods, events_of, pods_of
from trainmaster.dashboard.sessions import OPERATOR_SECONDS, RecordedJob, Viewer
from trainmaster.dashboard.streams import EventStream, Latest, outage, silence_problem
from trainmaster.history.statuses import observe, shown
from trainmaster.serving import Refused, first_to_end
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.values import mapping, number

# Minimum seconds between two reads of pods, maximum number of pods read per second, and seconds between two reads of
# events. If a job has many pods, they are read less often. After a change of its state, they are read at once.
PODS_SECONDS, PODS_A_SECOND, EVENTS_SECONDS = 2.0, 32, 5.0
# Seconds between two checks whether the viewer may change the job.
RIGHTS_SECONDS = 30.0
# Seconds before a retry: after a refusal, and after any other error.
RETRY_SECONDS, BROKEN_SECONDS = 30.0, 3.0
# Seconds between two checks whether the job and its pods have been read for the first time.
FIRST_SECONDS = 0.05
# Seconds after which the history has recorded a change of a job's attempts.
HISTORY_SECONDS = 1.5
# The interval between two reads of pods, or of events, is at least this many times as long as a read.
PODS_TIMES = 10.0
# Approximate bytes of memory that a page needs for each byte of its last events, because rows, the job and its
# attempts are also kept as objects.
MEMORY_OF_A_BYTE = 4
_SPENT = frozenset(("until", *TIME_CATEGORIES))
Attempt = dict[str, Any]
_UNKNOWN: Attempt = {
    **dict.fromkeys(("startedAt", "runningAt", "endedAt", "failure", "firstStep", "lastStep", "trainingWith")),
    "workers": [],
}
# Maximum number of attempts on a page. A history keeps all.
MOST_ATTEMPTS = 500


@dataclass
class JobPage:
    """JobPage follows one job for one viewer. `uid` selects one of several jobs of the same name."""

    viewer: Viewer
    figures: Figures
    namespace: str
    name: str
    uid: str | None = None
    _latest: Latest = field(default_factory=Latest)
    # Bytes of memory that are counted for this page.
    _weight: int = 0
    _is_gone: bool = False
    # When the API server last answered (seconds since the epoch).
    _answered_at: float = field(default_factory=time.time)
    _job: TrainingJob | None = None
    # None until the pods have been read, or if the viewer may not read them.
    _pods: list[Row] | None = None
    _pods_forbidden: str = ""
    # Whether the viewer may suspend, resume and restart the job.
    _may_change: bool = False
    _recorded: list[Attempt] = field(default_factory=list)
    # Set when the job's state has changed: another phase, attempt or failure.
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _changed_for_pods: asyncio.Event = field(default_factory=asyncio.Event)

    def show_recorded(self, found: RecordedJob) -> None:
        """Prepares the page of a deleted job from the history's record. No changes follow."""
        job = mapping(found.get("job"))
        row = {**row_of(job), "deletedAt": found.get("deletedAt")}
        self._latest.put("job", {**_head(job), "row": row, "live": False})
        self._latest.put("attempts", attempts_of_record(found))
        self._is_gone = True

    async def send_to(self, stream: EventStream) -> None:
        """Sends the job's changes until it is deleted. Raises ClientError."""
        try:
            self._weigh()
            parts = [self._latest.send_to(stream)]
            if not self._is_gone:
                parts += [self._follow(), self._look_at_pods(), self._look_at_attempts()]
                parts += [self._repeat(self._look_at_rights, BROKEN_SECONDS)]
                parts += [self._repeat(self._look_at_events, RETRY_SECONDS)]
                parts += [self._repeat(self._look_at_ranks, BROKEN_SECONDS)]
                parts += [self._repeat(self._look_at_operator, RETRY_SECONDS)]
            await first_to_end(*parts)
        finally:
            self.viewer.tenant.all.bytes.take(self.viewer.tenant.name, -self._weight)

    async def _follow(self) -> None:
        while True:
            try:
                await self._show_changes()
                break
            except NoCluster as error:
                if self._job is None:
                    raise
                # The page keeps what it shows, until the API server answers again.
                self._latest.put_event("problem", outage(error, self._answered_at))
                self._latest.forget("job")
                await asyncio.sleep(BROKEN_SECONDS)
        self._latest.put("gone", {})
        self._latest.end()
        # The end of this task would cancel the sending task. That task ends after it has sent the deletion.
        await asyncio.Event().wait()

    async def _show_changes(self) -> None:
        """Shows the job's states until it is deleted. Raises NoCluster if the API server doesn't answer."""
        async with aclosing(watch_job(self.viewer.transport, self.namespace, self.name)) as jobs:
            async for job in jobs:
                if self.uid not in (None, job.uid):
                    break
                self.uid, self._answered_at = job.uid, time.time()
                self._show(job)

    async def _look_at_operator(self, job: TrainingJob) -> float:
        found = None if job.finished else await self.viewer.silence(self.namespace, written_at(job.raw))
        if found is not None:
            self._latest.put_event("problem", silence_problem(found))
            # The next state of the job ends the message.
            self._latest.forget("job")
        return OPERATOR_SECONDS

    def _show(self, job: TrainingJob) -> None:
        before, self._job = self._job, job
        lost = lost_checkpoints(job)
        said = {"warning": lost and f"Warning: {lost}; {KEEPING}.", "resumes": start_of_resumed(job)}
        self._latest.put(
            "job", {**_head(job.raw), "row": row_of(job.raw), "live": True, **said, "mayChange": self._may_change}
        )
        self._latest.put("attempts", attempts_of(job, self._recorded))
        self._weigh()
        if before is None or _stands(before) != _stands(job):
            self._changed.set()
            self._changed_for_pods.set()

    def _weigh(self) -> None:
        """Counts this page's memory. Raises Refused if the tenant's pages, or all pages, use too much."""
        share, tenant = self.viewer.tenant.all.bytes, self.viewer.tenant.name
        more = MEMORY_OF_A_BYTE * self._latest.bytes - self._weight
        if more > share.room(tenant):
            sentence = "Your open pages of jobs, or all viewers' together, need too much memory here; close some."
            raise Refused(503, sentence)
        share.take(tenant, more)
        self._weight += more

    async def _look_at_pods(self) -> None:
        while True:
            self._changed_for_pods.clear()
            began = time.monotonic()
            try:
                self._pods, self._pods_forbidden = await pods_of(self.viewer.transport, self.namespace, self.name), ""
                # Pods are read less often if reading takes long.
                took = time.monotonic() - began
                wait = max(PODS_SECONDS, len(self._pods) / PODS_A_SECOND, PODS_TIMES * took)
                if self._job is not None and self._job.finished and not self._pods:
                    wait = RETRY_SECONDS
            except NotAllowed as error:
                self._pods, self._pods_forbidden, wait = None, str(error), RETRY_SECONDS
            except ClientError:
                wait = BROKEN_SECONDS
            self._latest.put("pods", self._pods or [])
            self._weigh()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed_for_pods.wait()
            # One read covers changes that arrive together.
            await asyncio.sleep(FIRST_SECONDS)

    async def _repeat(self, look: Callable[[TrainingJob], Awaitable[float]], failed_seconds: float) -> None:
        """Calls `look` repeatedly once the job has been read. `look` returns the seconds until the next call."""
        while True:
            try:
                wait = FIRST_SECONDS if self._job is None else await look(self._job)
            except ClientError:
                wait = failed_seconds
            await asyncio.sleep(wait)

    async def _look_at_events(self, job: TrainingJob) -> float:
        began = time.monotonic()
        self._latest.put("events", await events_of(self.viewer.transport, job))
        return max(EVENTS_SECONDS, PODS_TIMES * (time.monotonic() - began))

    async def _look_at_rights(self, job: TrainingJob) -> float:
        may_change = await self.viewer.access.allows(Access("patch", namespace=self.namespace, name=self.name))
        if may_change != self._may_change:
            self._may_change = may_change
            self._show(self._job or job)
        return RIGHTS_SECONDS

    async def _look_at_ranks(self, job: TrainingJob) -> float:
        pods = self._pods
        if pods is None and not self._pods_forbidden:
            return FIRST_SECONDS
        if job.phase == "Running" and pods is None:
            self._latest.put_event("ranks", await self.figures.recorded(self.viewer, job, self._pods_forbidden))
        elif job.phase == "Running":
            self._latest.put_event("ranks", await self.figures.of(self.viewer, job, asked_pods(pods or ())))
        return seconds_between(len(pods or ()))

    async def _look_at_attempts(self) -> None:
        """Reads the history when the job's state changes, and again once the history has recorded the change."""
        history = self.viewer.history
        while history is not None:
            await self._changed.wait()
            self._changed.clear()
            for _ in range(2):
                with suppress(ClientError):
                    self._recorded = attempts_of_record(await history.job(self.namespace, self.name, uid=self.uid))
                    if self._job is not None:
                        self._latest.put("attempts", attempts_of(self._job, self._recorded))
                await asyncio.sleep(HISTORY_SECONDS)
        await asyncio.Event().wait()


def _head(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a job that the page's head shows and its row doesn't contain."""
    spec, status = mapping(raw.get("spec")), mapping(raw.get("status"))
    shown = {name: spec[name] for name in ("workers", "processesPerWorker") if isinstance(spec.get(name), int)}
    gpus, most = mapping(spec.get("resources")).get("gpus"), mapping(spec.get("failurePolicy")).get("maxRestarts")
    if isinstance(gpus, int):
        shown["resources"] = {"gpus": gpus}
    if isinstance(most, int):
        shown["failurePolicy"] = {"maxRestarts": most}
    spent = {name: value for name, value in mapping(status.get("timeSpent")).items() if name in _SPENT}
    epoch = number(mapping(status.get("progress")).get("epoch"))
    return {"spec": shown, "status": {"timeSpent": spent, "progress": {"epoch": epoch}}}


def _stands(job: TrainingJob) -> tuple[str, int, int]:
    return job.phase, job.status.attempt, len(job.status.failures)


def attempts_of(job: TrainingJob, recorded: Sequence[Attempt] = ()) -> list[Attempt]:
    """Returns the attempts, oldest first. Unknown values are None."""
    current, progress = job.status.attempt, job.status.progress
    known = sorted(observe(mapping(job.raw.get("status")), {}, time.time()).items())
    found = {one["attempt"]: one for one in recorded}
    for (attempt, own), (_, following) in zip(known, [*known[1:], (0, None)], strict=True):
        derived = shown(attempt, own, following, phase=job.phase, deleted_at=None)
        # Only the status shows which ranks are missing now, so its `trainingWith` is used even if it is None.
        certain = {name: value for name, value in derived.items() if value is not None or name == "trainingWith"}
        found[attempt] = {**_UNKNOWN, **found.get(attempt, {}), **certain}
    if progress is not None and progress.attempt == current in found and progress.step is not None:
        found[current]["lastStep"] = progress.step
    ordered = [found[attempt] for attempt in sorted(found)]
    for before, one in zip([None, *ordered], ordered, strict=False):
        if one["startedAt"] is None:
            # The attempt began when the previous attempt ended, or a moment later.
            one["startedAt"] = job.status.start_time if before is None else before["endedAt"]
    return ordered


def attempts_of_record(found: Mapping[str, Any]) -> list[Attempt]:
    """Returns the newest attempts of a history's record. Only the last attempt includes its workers."""
    attempts = found["attempts"][-MOST_ATTEMPTS:]
    return [*({**one, "workers": []} for one in attempts[:-1]), *attempts[-1:]]
