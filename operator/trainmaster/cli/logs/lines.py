"""A line of a worker's output says whose it is: agents print `[rank 3]: ` before it, and where an attempt begins."""

from __future__ import annotations

import re

from trainmaster.api.attempt_marks import marked_attempt
from trainmaster.client.merging import WorkerLine

_RANK = re.compile(r"\[rank (\d{1,9})\]: ?")
# What the launcher prints, and no rank of its own.
_WORKER = re.compile(r"\[worker \d{1,9}\]: ?")


class Line(WorkerLine):
    """Line is a line of a worker's output that knows its author."""

    __slots__ = ()

    @property
    def separates(self) -> int | None:
        """Returns the attempt that begins behind this line; None for any other line."""
        return marked_attempt(self.text)

    @property
    def rank(self) -> int | None:
        """Returns the rank that printed this; None where it was the launcher or the agent."""
        match = _RANK.match(self.text)
        return int(match[1]) if match else None

    @property
    def label(self) -> str:
        """Returns how the line begins, by which its author is known: `[rank 3]: `, or nothing."""
        match = _RANK.match(self.text) or _WORKER.match(self.text)
        return match[0] if match else ""
