"""The live answer of one job: the job and its attempts at each change, its pods, its events, and what its ranks say.

Everything is asked with the viewer's own token. A job that is gone is shown as the history has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.client.job import TrainingJob
from trainmaster.client.output import Output
from trainmaster.client.watching import Watcher
from trainmaster.dashboard.attempts import Attempt, attempts_of
from trainmaster.dashboard.figures import Figures, seconds_between
from trainmaster.dashboard.history import RecordedJob
from trainmaster.dashboard.objects import events_of, pod_rows
from trainmaster.dashboard.rows import row_of
from trainmaster.dashboard.streams import EventStream, Latest, first_to_end
from trainmaster.dashboard.viewers import Viewer
from trainmaster.wire.values import mapping, mappings

# Between two looks at pods, and at events; many pods are read less often, and at once when the job stands otherwise.
PODS_SECONDS, PODS_A_SECOND, EVENTS_SECONDS = 2.0, 32, 5.0
# What the viewer may not read is tried again after this, and what can't be read now.
RETRY_SECONDS, BROKEN_SECONDS = 30.0, 3.0
# Between two looks whether the first answer of another part is there.
FIRST_SECONDS = 0.05
# The history has a change of a job's attempts after a moment.
HISTORY_SECONDS = 1.5


@dataclass
class JobPage:
    """JobPage follows one job for one viewer; `uid` is of one life of the job, where another has its name now."""

    viewer: Viewer
    figures: Figures
    namespace: str
    name: str
    uid: str | None = None
    _latest: Latest = field(default_factory=Latest)
    _job: TrainingJob | None = None
    # None until they were read, and where the viewer may not read them.
    _pods: list[Mapping[str, Any]] | None = None
    _pods_forbidden: str = ""
    _recorded: list[Attempt] = field(default_factory=list)
    # The job stands otherwise: another phase, attempt or failure.
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _changed_for_pods: asyncio.Event = field(default_factory=asyncio.Event)

    async def send_to(self, stream: EventStream, found: TrainingJob | RecordedJob) -> None:
        """Sends what comes of a job until it is deleted; one that is gone is sent once. Raises ClientError."""
        if isinstance(found, TrainingJob):
            await first_to_end(
                self._latest.send_to(stream),
                self._follow(),
                self._look_at_pods(),
                self._look_at_events(),
                self._look_at_ranks(),
                self._look_at_attempts(),
            )
        else:
            job = mapping(found.get("job"))
            row = {**row_of(job), "deletedAt": found.get("deletedAt")}
            answer = {"row": row, "status": job.get("status") or {}, "spec": job.get("spec") or {}}
            self._latest.put("job", {**answer, "live": False})
            self._latest.put("attempts", list(mappings(found.get("attempts"))))
            await self._latest.send_to(stream)

    async def _follow(self) -> None:
        async with aclosing(Watcher(self.viewer.transport, self.namespace).one(self.name)) as jobs:
            async for job in jobs:
                if self.uid not in (None, job.uid):
                    break
                self.uid = job.uid
                self._show(job)
        self._latest.put("gone", {})
        self._latest.end()
        # The sending ends when it has sent that.
        await asyncio.Event().wait()

    def _show(self, job: TrainingJob) -> None:
        before, self._job = self._job, job
        status = dict(mapping(job.raw.get("status")))
        answer = {"row": row_of(job.raw), "status": status, "spec": job.raw.get("spec") or {}, "live": True}
        self._latest.put("job", answer)
        self._latest.put("attempts", attempts_of(job, self._recorded))
        if before is None or _stands(before) != _stands(job):
            self._changed.set()
            self._changed_for_pods.set()

    async def _look_at_pods(self) -> None:
        output = Output(self.viewer.transport, self.namespace)
        while True:
            self._changed_for_pods.clear()
            wait = max(PODS_SECONDS, len(self._pods or ()) / PODS_A_SECOND)
            try:
                self._pods, self._pods_forbidden = await output.pods(self.name), ""
                if self._job is not None and self._job.finished and not self._pods:
                    wait = RETRY_SECONDS
            except NotAllowed as error:
                self._pods, self._pods_forbidden, wait = None, str(error), RETRY_SECONDS
            except ClientError:
                wait = BROKEN_SECONDS
            self._latest.put("pods", pod_rows(self._pods or ()))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed_for_pods.wait()
            # All that changes together is read once.
            await asyncio.sleep(FIRST_SECONDS)

    async def _look_at_events(self) -> None:
        while True:
            wait = EVENTS_SECONDS
            if self._job is not None:
                try:
                    events = await events_of(self.viewer.transport, self._job, self._pods or ())
                    self._latest.put("events", events)
                except ClientError:
                    wait = RETRY_SECONDS
            await asyncio.sleep(wait if self._job is not None else FIRST_SECONDS)

    async def _look_at_ranks(self) -> None:
        while True:
            job, pods = self._job, self._pods
            wait = seconds_between(len(pods or ()))
            if job is None or (pods is None and not self._pods_forbidden):
                wait = FIRST_SECONDS
            elif job.phase == "Running":
                try:
                    if pods is None:
                        ranks = await self.figures.recorded(self.viewer, job, self._pods_forbidden)
                    else:
                        ranks = await self.figures.of(self.viewer, job, pods)
                    self._latest.put("ranks", ranks, again=True)
                except ClientError:
                    wait = BROKEN_SECONDS
            await asyncio.sleep(wait)

    async def _look_at_attempts(self) -> None:
        """Reads the history when the job stands otherwise, and a moment later, when it has recorded that."""
        history = self.viewer.history
        while history is not None:
            await self._changed.wait()
            self._changed.clear()
            for _ in range(2):
                try:
                    found = await history.job(self.namespace, self.name, uid=self.uid)
                    self._recorded = list(map(dict, mappings(found.get("attempts"))))
                    if self._job is not None:
                        self._latest.put("attempts", attempts_of(self._job, self._recorded))
                except ClientError:
                    pass
                await asyncio.sleep(HISTORY_SECONDS)
        await asyncio.Event().wait()


def _stands(job: TrainingJob) -> tuple[str, int, int]:
    return job.phase, job.status.attempt, len(job.status.failures)
