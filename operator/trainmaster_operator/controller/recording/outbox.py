"""The outbox has the records that wait to be sent, in their order, within a number of bytes.

A newer record of a job takes the place of the one that waits, unless the attempt, the phase or a failure is another:
those are the history's facts. What there is no room for is dropped: samples first, then records of jobs that a newer
one follows, then whatever is oldest.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trainmaster_operator.controller.recording.lines import MAX_LINE
from trainmaster_operator.controller.recording.posting import Complaints

logger = logging.getLogger(__name__)

MAX_BYTES = 32 * 1024 * 1024
# What an entry costs beside its line.
OVERHEAD = 300

Outcome = Literal["sent", "dropped", "refused"]
"""What becomes of a record: `dropped` as there was no room for it, `refused` by the history."""
EntryKind = Literal["job", "sample", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry is a record that waits, as its line; `uid` is its job's, and `facts` stand for those of a job's record."""

    kind: EntryKind
    uid: str
    line: bytes
    facts: int = 0

    @property
    def size(self) -> int:
        return len(self.line) + OVERHEAD


class Outbox:
    """See the module. `count` is told how many records are dropped."""

    def __init__(self, count: Callable[[Outcome, int], None], limit: int = MAX_BYTES) -> None:
        self._count = count
        self._complaints = Complaints(logger, "The history")
        self._limit = limit
        # By number, in their order. Dicts that are emptied from the front are slow to find their first key.
        self._waiting: OrderedDict[int, Entry] = OrderedDict()
        self._samples: OrderedDict[int, None] = OrderedDict()
        self._followed: OrderedDict[int, None] = OrderedDict()
        # By uid, the last waiting record of each job.
        self._last: dict[str, int] = {}
        self._number = 0
        # Bytes of what waits, and of what was taken and isn't done yet.
        self.size = self._taken = 0
        # Something was dropped that no later record makes up for.
        self.lost = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: Entry) -> None:
        """Add a record."""
        if len(entry.line) >= MAX_LINE:
            self._drop("a record is too large")
            return
        before = self._last.get(entry.uid) if entry.kind == "job" else None
        if before is not None and self._waiting[before].facts == entry.facts:
            self.size += entry.size - self._waiting[before].size
            self._waiting[before] = entry
            self._make_room(0, samples_only=False)
            return
        if not self._make_room(entry.size, samples_only=entry.kind == "sample"):
            self._drop("too many wait already")
            self.lost |= entry.kind != "sample"
            return
        number = self._number = self._number + 1
        self._waiting[number] = entry
        self.size += entry.size
        if entry.kind == "sample":
            self._samples[number] = None
        elif entry.kind == "job":
            before = self._last.get(entry.uid)
            if before is not None:
                self._followed[before] = None
            self._last[entry.uid] = number

    def take(self, most: int) -> Sequence[Entry]:
        """Returns the first records, with lines of `most` bytes at most and one at least; they count until `done`."""
        taken: list[Entry] = []
        length = 0
        while self._waiting:
            number = next(iter(self._waiting))
            length += len(self._waiting[number].line) + 1
            if taken and length > most:
                break
            taken.append(self._remove(number))
        self._taken = sum(entry.size for entry in taken)
        self.size += self._taken
        return taken

    def done(self) -> None:
        """Forget what was taken."""
        self.size -= self._taken
        self._taken = 0

    def _make_room(self, size: int, *, samples_only: bool) -> bool:
        """Drop what has to give way for so many bytes; returns whether that is enough."""
        while self.size + size > self._limit:
            if self._samples:
                number = next(iter(self._samples))
            elif samples_only or not self._waiting:
                return False
            else:
                number = next(iter(self._followed or self._waiting))
                self.lost = True
            self._remove(number)
            self._drop("too many wait already")
        return True

    def _drop(self, problem: str) -> None:
        self._count("dropped", 1)
        self._complaints.say(f"records are dropped: {problem}")

    def _remove(self, number: int) -> Entry:
        entry = self._waiting.pop(number)
        self._samples.pop(number, None)
        self._followed.pop(number, None)
        if self._last.get(entry.uid) == number:
            del self._last[entry.uid]
        self.size -= entry.size
        return entry
