"""The assignment's file is one of the three ways by which an assignment comes to an agent (`wire.assignment`)."""

from __future__ import annotations

import os
from typing import Any

from trainmaster_operator.wire.assignment import parse_text
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES


class AssignmentFile:
    """AssignmentFile is the downward API's file, read again whenever it changes.

    The kubelet replaces such files by swapping the symbolic link `..data`, so the file's own inode changes; `stat`
    follows the link. Level-triggered: `poll` costs one `stat`, and a file that can't be read is read again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def poll(self) -> Any:
        """Returns what the file holds, when it has changed since the last call; else None. Raises ProtocolError."""
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return None
            with open(self.path, "rb") as file:
                text = file.read(MAX_ASSIGNMENT_BYTES + 1)
        except OSError:
            # Not there yet, or between two versions: the next poll sees it.
            return None
        self._seen = seen
        # The annotation isn't set: the pod was made by hand, or the file is from before the first patch.
        return parse_text(text) if text.strip() else None
