"""The progress files of a worker's ranks (docs/protocol.md, "Progress") are read; what is in them is a user's.

A rank may keep its step in a second file, which it writes in every step, because it rewrites the first one less often.
Steps that come from such a file are exact: ranks are compared by them in a hang.
"""

from __future__ import annotations

import os
from typing import Optional

from trainmaster_operator.wire.limits import MAX_PROGRESS_FILE_BYTES
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import loads, whole

COUNT_BYTES = 8


class Heartbeats:
    """Heartbeats has the newest progress of each rank, as `poll` finds it in the files of one attempt."""

    def __init__(self, path: str, ranks: range, since: float = 0.0) -> None:
        self._since = since
        """What ranks say to have happened before that, in seconds since the epoch, was of an earlier attempt."""
        # The plain file is the first rank's, where that doesn't write one of its own.
        self._files = [(ranks[0], path), *((rank, f"{path}.{rank}") for rank in ranks)]
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._written: dict[str, RankProgress] = {}
        self._counts: dict[str, Optional[int]] = {}
        self.counted: set[int] = set()
        """The ranks whose step is exact."""
        self.ranks: dict[int, RankProgress] = {}
        """The newest well-formed progress of each rank that has written any."""
        self.progressed_at: dict[int, float] = {}
        """When each rank's `step` or `section` last changed, on the monotonic clock."""
        self.first_step_at: dict[int, float] = {}
        """When each rank had done the attempt's first step (seconds since the epoch): as it says, else as its file."""

    def poll(self, now: float) -> bool:
        """Read what has changed; returns whether anything has."""
        changed = False
        for rank, path in self._files:
            text = self._read(path)
            # After the file, because a rank writes its step before that.
            count = _read_count(f"{path}.step")
            written = None if text is None else parse_progress(text)
            if written is None and (path not in self._written or count == self._counts.get(path)):
                continue
            if written is not None:
                self._written[path] = self._of_this_attempt(written)
            self._counts[path], progress = count, self._written[path]
            if rank not in self.first_step_at and self._has_stepped(progress):
                self.first_step_at[rank] = progress.first_step_at or self._seen[path][1] / 1e9
            if count is not None:
                self.counted.add(rank)
                progress = progress._replace(step=count)
            before = self.ranks.get(rank)
            if before is None or (before.step, before.section) != (progress.step, progress.section):
                self.progressed_at[rank] = now
            self.ranks[rank] = progress
            changed = True
        return changed

    def _of_this_attempt(self, written: RankProgress) -> RankProgress:
        joined_at, restored_at, first_step_at = (
            None if at is None or at < self._since else at
            for at in (written.joined_at, written.restored_at, written.first_step_at)
        )
        return written._replace(joined_at=joined_at, restored_at=restored_at, first_step_at=first_step_at)

    def _has_stepped(self, progress: RankProgress) -> bool:
        if self._since:
            return progress.first_step_at is not None
        return progress.step is not None and progress.step > (progress.start_step or 0)

    def _read(self, path: str) -> Optional[bytes]:
        """Returns what a file holds, if it has changed."""
        try:
            status = os.stat(path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._seen.get(path) == seen:
                return None
            with open(path, "rb") as file:
                text = file.read(MAX_PROGRESS_FILE_BYTES + 1)
        except OSError:
            return None
        self._seen[path] = seen
        return text


def _read_count(path: str) -> Optional[int]:
    try:
        with open(path, "rb") as file:
            data = file.read(COUNT_BYTES + 1)
    except OSError:
        return None
    return whole(int.from_bytes(data, "little", signed=True)) if len(data) == COUNT_BYTES else None


def parse_progress(text: bytes) -> Optional[RankProgress]:
    """Returns the well-formed fields of one progress file; None where it isn't a JSON object."""
    if len(text) > MAX_PROGRESS_FILE_BYTES:
        return None
    try:
        return RankProgress.salvage(loads(text))
    except ValueError:
        return None
