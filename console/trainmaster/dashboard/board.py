"""A board has the rows of a scope's jobs, and what changed in them since each of the last seconds.

It is pure, and all streams of the scope read it: each change is made and encoded once. A stream knows the number of the
last batch that it sent; one that has fallen so far behind that its next batch is forgotten begins anew with all jobs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from trainmaster.dashboard.rows import Row, changed_fields, row_of
from trainmaster.dashboard.streams import encoded
from trainmaster_operator.wire.values import mapping, mappings, text, whole

# Batches that a stream may be behind, a second each.
KEPT_BATCHES = 8


class Board:
    """Board holds rows by uid; `number` counts the batches that it has made."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        # Of the jobs that blame or avoid a node.
        self.blame: dict[str, Row] = {}
        self.number = 0
        # What each row was when the last batch was made; None for one that is new.
        self._before: dict[str, Row | None] = {}
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._whole: tuple[int, bytes] | None = None

    def put(self, job: Mapping[str, Any]) -> None:
        """Takes a job as it is now."""
        row = row_of(job)
        uid = row["uid"]
        known = self.rows.get(uid)
        if known != row:
            self._before.setdefault(uid, known)
            self.rows[uid] = row
        blame = blame_of(job)
        if blame:
            self.blame[uid] = blame
        else:
            self.blame.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Takes a job's deletion."""
        known = self.rows.pop(uid, None)
        self.blame.pop(uid, None)
        if known is not None:
            self._before.setdefault(uid, known)

    def keep_only(self, uids: Collection[str]) -> None:
        """Takes a list's word for which jobs there are."""
        for uid in self.rows.keys() - set(uids):
            self.remove(uid)

    def make_batch(self) -> bool:
        """Makes a batch of what changed since the last one; returns whether anything had."""
        changed, gone = [], []
        for uid, before in self._before.items():
            row = self.rows.get(uid)
            if row is None:
                gone += [uid] if before is not None else []
            elif before is None:
                changed.append(row)
            elif fields := changed_fields(before, row):
                changed.append({"uid": uid, **fields})
        self._before.clear()
        if not changed and not gone:
            return False
        self.number += 1
        self._batches.append((self.number, encoded("changed", {"at": time.time(), "rows": changed, "gone": gone})))
        return True

    def forget_changes(self) -> None:
        """Makes no batch of what came before somebody saw anything."""
        self._before.clear()

    def whole(self) -> bytes:
        """Returns the message with all jobs, encoded once for all who begin behind the same batch."""
        if self._whole is None or self._whole[0] != self.number:
            # What has changed since that batch comes again with the next one.
            self._whole = (self.number, encoded("jobs", {"at": time.time(), "jobs": list(self.rows.values())}))
        return self._whole[1]

    def since(self, number: int) -> list[bytes] | None:
        """Returns the batches behind that number; None where one of them is forgotten."""
        if number == self.number:
            return []
        if not self._batches or self._batches[0][0] > number + 1:
            return None
        return [batch for made, batch in self._batches if made > number]


def blame_of(job: Mapping[str, Any]) -> Row:
    """Returns what a job says of nodes: which it avoids, and how many of its failures each may have caused."""
    status = mapping(job.get("status"))
    failures: dict[str, int] = {}
    for failure in mappings(status.get("failures")):
        if node := text(failure.get("node"), 253):
            failures[node] = failures.get(node, 0) + 1
    # The operator's own count also has failures that the status no longer lists.
    for node, count in mapping(status.get("nodeFailures")).items():
        failures[text(node, 253)] = whole(count) or 0
    avoided = status.get("avoidedNodes")
    named = [text(node, 253) for node in avoided if isinstance(node, str)] if isinstance(avoided, list) else []
    if not failures and not named:
        return {}
    metadata = mapping(job.get("metadata"))
    return {
        "namespace": text(metadata.get("namespace"), 253),
        "name": text(metadata.get("name"), 253),
        "failures": failures,
        "avoided": named,
    }
