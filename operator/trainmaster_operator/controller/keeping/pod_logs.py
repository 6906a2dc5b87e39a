"""Reads the logs of workers' containers: as they are, or to the end of a container that is about to end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog, StampedLine, stamped_line
from trainmaster_operator.controller.apiserver.cluster import Cluster
from trainmaster_operator.controller.apiserver.errors import Refused
from trainmaster_operator.reconciling.observed.snapshot import PodView

# Lines of a log that are asked for.
TAIL_LINES = 2_000
# The agents' stream is faster than the container's log: a log is complete when it has stood still for so long.
SETTLE_SECONDS = 0.2
SETTLE_TRIES = 8
# Bytes of a log that is followed that are read at once, and then each second: what comes faster waits in its file.
FOLLOWED_BURST, FOLLOWED_BYTES_A_SECOND = 1024 * 1024, 256 * 1024.0
# A line's time in the log has 31 bytes more than it has where it is kept; a line that is longer is cut into several.
STAMPED, LONGEST_LINE = 4, 16 * 1024


class LogEnd:
    """LogEnd has the newest lines of a log that is being read. `limit`: the bytes that are to be kept of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._count = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Read on."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        self._lines.extend(lines)
        self._count += len(lines)
        self._size += sum(map(len, lines))
        while self._size > STAMPED * self.limit and len(self._lines) > 1:
            self._size -= len(self._lines.popleft())

    @property
    def empty(self) -> bool:
        """Returns whether nothing was read."""
        return not (self._lines or self._rest)

    def log(self) -> KeptLog:
        """Returns what was read."""
        raws = [*self._lines, *([self._rest] if self._rest else [])]
        lines = [stamped_line(raw.decode(errors="replace").replace("\x00", "")) for raw in raws]
        # The kubelet was asked for no more lines than these.
        cut = self._count > len(self._lines) or self._count >= TAIL_LINES
        return kept_log(lines, cut=cut).ending(self.limit)


class PodLogs:
    """See the module. What can't be read raises ClusterError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def tail(self, namespace: str, pod: PodView, limit: int, *, complete: bool = True) -> str:
        """Read the end of a worker's log, at most `limit` bytes, from whole lines."""
        log = await self.read(namespace, pod, complete=complete)
        return "".join(f"{line}\n" for line in log.ending(limit).lines)

    async def read(self, namespace: str, pod: PodView, *, complete: bool) -> KeptLog:
        """Read a worker's log. `complete`: its ranks have ended, so that it is worth waiting for their last lines."""
        # limitBytes cuts the *end* off (kubelet's meaning), so more is read than kept, by lines, and cut later.
        container = pod.worker_container
        restarts = container.restarts if container is not None else 0
        restarted = restarts > 0
        if container is not None and container.state != "running":
            # Nothing comes any more. While the container waits for its next start, this is the one before already.
            lines = await self._lines(namespace, pod.name)
            restarted = restarted and container.state == "terminated"
        elif complete:
            lines = await self._settled(namespace, pod.name, may_be_empty=restarted)
        else:
            lines = await self._lines(namespace, pod.name)
        cut = len(lines) >= TAIL_LINES or restarts > 1
        if restarted or not lines:
            # An agent that reported by exiting left what its ranks printed in the log of the container before; an empty
            # log is one of a container that was started again since the pod was last seen.
            before = await self._lines(namespace, pod.name, previous=True)
            cut = cut or len(before) >= TAIL_LINES
            lines = [*before, *lines]
        return kept_log(lines, cut=cut)

    async def follow(self, namespace: str, pod: PodView, end: LogEnd, opened: Callable[[], None]) -> None:
        """Read a worker's log until its container ends; `opened` is called when it is being read."""
        container = pod.worker_container
        if container is not None and container.restarts > 0:
            before = await self._text(namespace, pod.name, previous=True)
            end.feed(f"{before}\n".encode() if before else b"")
        clock = asyncio.get_running_loop().time
        began, size = clock(), 0
        async with self._cluster.followed_log(namespace, pod.name, container="worker", tail_lines=TAIL_LINES) as chunks:
            opened()
            async for chunk in chunks:
                end.feed(chunk)
                size += len(chunk)
                wait = (size - FOLLOWED_BURST) / FOLLOWED_BYTES_A_SECOND - (clock() - began)
                if wait > 0:
                    await asyncio.sleep(wait)

    async def _settled(self, namespace: str, pod: str, *, may_be_empty: bool) -> list[StampedLine]:
        """Read the log once it doesn't grow any more; an empty one may still be on its way."""
        before: list[StampedLine] | None = None
        lines: list[StampedLine] = []
        for _ in range(SETTLE_TRIES):
            lines = await self._lines(namespace, pod)
            if lines == before and (lines or may_be_empty):
                break
            before = lines
            await asyncio.sleep(SETTLE_SECONDS)
        return lines

    async def _lines(self, namespace: str, pod: str, *, previous: bool = False) -> list[StampedLine]:
        # splitlines() would also split at what isn't the end of a line, such as a form feed.
        whole = await self._text(namespace, pod, previous=previous)
        return [stamped_line(line) for line in whole.split("\n")] if whole else []

    async def _text(self, namespace: str, pod: str, *, previous: bool) -> str:
        try:
            text = await self._cluster.pod_log(
                namespace,
                pod,
                container="worker",
                tail_lines=TAIL_LINES,
                limit_bytes=16 * LONGEST_LOG,
                previous=previous,
                timestamps=True,
            )
        except Refused:
            if previous:
                # The kubelet keeps the last container's log only, and that one may be gone already (400).
                return ""
            raise
        return text.replace("\x00", "").removesuffix("\n")


def kept_log(lines: list[StampedLine], *, cut: bool) -> KeptLog:
    """Returns lines of a container's log as they are kept."""
    times = tuple(round(line.time * 1_000) for line in lines if line.time is not None)
    return KeptLog(tuple(line.text for line in lines), times if len(times) == len(lines) else None, cut)
