"""Progress files: what ranks write of how far they are (docs/protocol.md, "Progress"). They are user input."""

from __future__ import annotations

import os
import time
from typing import Any

from trainmaster.wire.limits import MAX_PROGRESS_FILE_BYTES
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.values import loads


def parse_progress(text: bytes) -> dict[str, Any] | None:
    """The known fields of one progress file that are well-formed; None where it isn't a JSON object."""
    if len(text) > MAX_PROGRESS_FILE_BYTES:
        return None
    try:
        progress = RankProgress.salvage(loads(text))
    except ValueError:
        return None
    return None if progress is None else progress.to_wire()


class Heartbeats:
    """The progress files of one worker's ranks in one attempt."""

    def __init__(self, path: str, ranks: range) -> None:
        # The plain file is the first rank's, where that doesn't write one of its own.
        self._files = [(str(ranks[0]), path), *((str(rank), f"{path}.{rank}") for rank in ranks)]
        self._seen: dict[str, tuple[int, int, int]] = {}
        self.ranks: dict[str, dict[str, Any]] = {}
        """The newest well-formed progress of each rank."""
        self.progressed_at: dict[str, float] = {}
        """When each rank's `step` or `section` last changed, on the monotonic clock."""

    def poll(self) -> bool:
        """Read what has changed; whether anything has."""
        changed = False
        for rank, path in self._files:
            try:
                status = os.stat(path)
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._seen.get(path) == seen:
                    continue
                with open(path, "rb") as file:
                    text = file.read(MAX_PROGRESS_FILE_BYTES + 1)
            except OSError:
                continue
            self._seen[path] = seen
            progress = parse_progress(text)
            if progress is None:
                continue
            before = self.ranks.get(rank, {})
            if (before.get("step"), before.get("section")) != (progress.get("step"), progress.get("section")):
                self.progressed_at[rank] = time.monotonic()
            self.ranks[rank] = progress
            changed = True
        return changed
