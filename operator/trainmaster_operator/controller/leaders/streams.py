"""The open streams of all running jobs, each from the job's leader: reports, progress and workers as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders.reach import Reach
from trainmaster_operator.controller.leaders.stream import LeaderStream, StreamEvents
from trainmaster_operator.controller.leaders.targets import StreamTarget
from trainmaster_operator.wire.assignment import Assignment


class LeaderStreams:
    """Watches the leaders of all jobs: a `LeaderStream` for each job that has an agent to listen to."""

    def __init__(
        self,
        reach: Reach,
        store: Store,
        keys: SigningKeys,
        events: StreamEvents,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._reach = reach
        self._store = store
        self._keys = keys
        self._events = events
        self._now = now
        # One stream's lines at a time, and the loop turns in between: never held while anything is waited for.
        self._turn = asyncio.Lock()
        self._streams: dict[JobKey, LeaderStream] = {}

    @property
    def open(self) -> int:
        """Returns how many streams are connected now."""
        return sum(stream.connected_to is not None for stream in self._streams.values())

    def watch(self, key: JobKey, target: StreamTarget | None) -> None:
        """Watch a job's leader, among other agents of the job than before, or (None) no more."""
        stream = self._streams.get(key)
        if stream is not None and (target is None or stream.target.uid != target.uid):
            stream.stop()
            del self._streams[key]
            stream = None
        if target is None:
            return
        if stream is None:
            self._streams[key] = LeaderStream(
                self._reach, self._store, self._keys, target, self._events, self._now, self._turn
            )
        else:
            stream.update(target)

    async def push(self, key: JobKey, assignment: Assignment) -> None:
        """Send an assignment to the leader if its stream is open. Returns a moment later, or when it is there."""
        stream = self._streams.get(key)
        if stream is not None:
            await stream.push(assignment)

    async def collect(self, key: JobKey, request: str) -> str:
        """Ask a job's leader for all ranks' stacks; returns why that isn't possible, empty where it has been asked."""
        stream = self._streams.get(key)
        return "no worker's agent is connected" if stream is None else await stream.collect(request)

    async def close(self) -> None:
        """End all streams."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.stop()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
