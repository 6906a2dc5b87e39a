"""A board holds one row for each job of a scope, and the changes of each of the last few seconds.

A row contains the few values that the list of jobs shows. Jobs are reduced to rows as they arrive, so thousands of
jobs need a few megabytes.

A board does no input or output. All streams of the scope read the same batches, so each change is encoded once. A
stream remembers the number of the last batch that it sent. If the next batch is gone, the stream sends all jobs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from trainmaster.client.view import JobView, view_of
from trainmaster.dashboard.streams import encoded
from trainmaster_operator.wire.values import mapping, text

Row = dict[str, Any]

# Number of batches that a stream may be behind. There is one batch a second.
KEPT_BATCHES = 8
# Maps names in a row to attributes of a job's view: first values, then texts. An empty text becomes null in the row.
_VALUES = {
    **{name: name for name in ("uid", "namespace", "name", "phase", "attempt", "restarts", "disruptions")},
    **{name: name for name in ("running", "desired", "step", "loss", "goodput")},
    **{"totalSteps": "total_steps", "etaSeconds": "eta_seconds", "samplesPerSecond": "samples_per_second"},
    **{"createdAt": "created_at", "startedAt": "started_at", "completedAt": "completed_at"},
}
_TEXTS = {"failure": "last_failure", "reason": "reason", "waits": "waits"}


def row_of(job: Mapping[str, Any], view: JobView | None = None) -> Row:
    """Returns a job's row. Times are RFC 3339, and unknown values are None."""
    view, spec = view or view_of(job), mapping(job.get("spec"))
    return {
        **{name: getattr(view, attribute) for name, attribute in _VALUES.items()},
        **{name: getattr(view, attribute) or None for name, attribute in _TEXTS.items()},
        "failedAt": view.failures[0].failed_at if view.failures else None,
        "queue": text(mapping(spec.get("scheduling")).get("queue"), 253) or None,
        "suspended": mapping(spec.get("runPolicy")).get("suspend") is True,
    }


class Board:
    """Board holds the rows by their jobs' uids. `number` is the last batch's number."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        # By uid, the jobs that avoid a node or blame it for failures.
        self.blame: dict[str, Row] = {}
        self.number = 0
        # The rows that have changed since the last batch, as they were in that batch; None for a new row.
        self._before: dict[str, Row | None] = {}
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._whole: tuple[int, bytes] | None = None

    def put(self, job: Mapping[str, Any]) -> None:
        """Adds a job's row, or replaces it."""
        view = view_of(job)
        row = row_of(job, view)
        uid = row["uid"]
        known = self.rows.get(uid)
        if known != row:
            self._before.setdefault(uid, known)
            self.rows[uid] = row
        if blame := blame_of(view):
            self.blame[uid] = blame
        else:
            self.blame.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Removes a deleted job."""
        known = self.rows.pop(uid, None)
        self.blame.pop(uid, None)
        if known is not None:
            self._before.setdefault(uid, known)

    def keep_only(self, uids: Collection[str]) -> None:
        """Removes all jobs whose uid isn't among `uids`."""
        for uid in self.rows.keys() - set(uids):
            self.remove(uid)

    def make_batch(self) -> bool:
        """Makes a batch of the changes since the last batch; returns whether there were any."""
        changed, gone = [], []
        for uid, before in self._before.items():
            row = self.rows.get(uid)
            if row is None:
                gone += [uid] if before is not None else []
            elif before is None:
                changed.append(row)
            elif fields := {name: value for name, value in row.items() if before.get(name) != value}:
                changed.append({"uid": uid, **fields})
        self._before.clear()
        if not changed and not gone:
            return False
        self.number += 1
        self._batches.append((self.number, encoded("changed", {"at": time.time(), "rows": changed, "gone": gone})))
        return True

    def forget_changes(self) -> None:
        """Drops the changes that were collected before jobs are shown for the first time."""
        self._before.clear()

    def whole(self) -> bytes:
        """Returns the message with all jobs, encoded once for all streams that begin after the same batch."""
        if self._whole is None or self._whole[0] != self.number:
            # If rows have changed since the last batch, this message contains the changes. The next batch repeats them.
            self._whole = (self.number, encoded("jobs", {"at": time.time(), "jobs": list(self.rows.values())}))
        return self._whole[1]

    def since(self, number: int) -> list[bytes] | None:
        """Returns the batches after batch `number`; None if one of them was dropped."""
        if number == self.number:
            return []
        if not self._batches or self._batches[0][0] > number + 1:
            return None
        return [batch for made, batch in self._batches if made > number]


def blame_of(view: JobView) -> Row:
    """Returns the nodes that a job avoids or blames, with the number of failures on each; empty if there are none."""
    # The operator only counts failures that a machine may cause. An exception of the program doesn't blame its node.
    if not view.node_failures and not view.avoided_nodes:
        return {}
    nodes = {"failures": dict(view.node_failures), "avoided": list(view.avoided_nodes)}
    return {"namespace": view.namespace, "name": view.name, **nodes}
