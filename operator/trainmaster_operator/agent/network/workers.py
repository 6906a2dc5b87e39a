"""The leader's table of workers: who has joined, who may still come in, and who gives way.

What one follower may have kept and queued here is bounded, so their number is too: the job's workers, and a few more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from trainmaster_operator.wire.stream import WorkerLine

MAX_OTHERS = 256
"""Followers that the assignment doesn't name, such as pods that wait for an elastic job to grow."""
MAX_ARRIVING = 256
HELLO_SECONDS = 10.0
"""Who has joined says within so long who it is."""
MAX_REPLACED = 4
"""Pods of a worker that have given way to a newer one, and are remembered for it."""


class Worker:
    """Worker is one worker as the leader knows it."""

    def __init__(self, worker: int, uid: str, peer: Optional[int], now: float) -> None:
        self.worker = worker
        self.uid = uid
        self.peer = peer
        """Its connection; None where it isn't connected."""
        self.seen = 0
        self.received_at = now
        self.environment: dict[str, str] = {}
        self.environment_attempt = 0
        """The attempt that started in this environment: files such as the configuration may change between two."""
        self.replaced: tuple[str, ...] = ()
        """Pods of this worker that gave way to a newer one while they were connected."""


class Workers:
    """Workers is the table, by worker index and by connection; `own` is the leader's own worker."""

    def __init__(self, own: Worker) -> None:
        self.own = own
        self._by_worker = {own.worker: own}
        self._by_peer: dict[int, Worker] = {}
        self._arriving: dict[int, float] = {}
        """The connections that haven't said who they are, and since when."""

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._by_worker.values())

    def get(self, worker: int) -> Optional[Worker]:
        """Returns a worker's row; None where it never joined."""
        return self._by_worker.get(worker)

    def of(self, peer: int) -> Optional[Worker]:
        """Returns whose connection it is; None of one that hasn't said who it is, or has been closed."""
        return self._by_peer.get(peer)

    def peers(self) -> tuple[int, ...]:
        """Returns all followers' connections."""
        return tuple(self._by_peer)

    def environments(self, workers: Sequence[int], attempt: int) -> dict[int, dict[str, str]]:
        """Returns what these workers run an attempt in, once all of them have started it."""
        rows = [self._by_worker.get(worker) for worker in workers]
        started = [row for row in rows if row is not None and row.environment_attempt == attempt]
        return {row.worker: row.environment for row in started} if len(started) == len(rows) else {}

    def line(self, row: Worker) -> WorkerLine:
        """Returns a worker's entry in the stream."""
        return WorkerLine(row.worker, row.uid, row.seen, row is self.own or row.peer is not None)

    def arrive(self, peer: int, now: float) -> Optional[int]:
        """Add a connection that will say who it is; returns the one that has to be closed for it, if any."""
        closed = next(iter(self._arriving)) if len(self._arriving) >= MAX_ARRIVING else None
        if closed is not None:
            del self._arriving[closed]
        self._arriving[peer] = now
        return closed

    def is_arriving(self, peer: int) -> bool:
        """Returns whether a connection hasn't said who it is yet."""
        return peer in self._arriving

    def late(self, now: float) -> list[int]:
        """Remove and return those that should have said who they are by now."""
        found = [peer for peer, since in self._arriving.items() if now - since > HELLO_SECONDS]
        for peer in found:
            del self._arriving[peer]
        return found

    def admit(self, worker: int, uid: str, named: frozenset[int], expected_uid: str) -> tuple[bool, Optional[int]]:
        """Returns whether a worker's pod may come in, and the worker that loses its row for it, if any.

        One that isn't `named` by the assignment may need the place of another such one, which isn't connected.
        `expected_uid` is the pod that the assignment names; empty where it names none.
        """
        if worker == self.own.worker or not self._is_newest(worker, uid, expected_uid):
            return False, None
        if worker in named or worker in self._by_worker:
            return True, None
        others = [row for row in self if row.worker not in named and row is not self.own]
        if len(others) < MAX_OTHERS:
            return True, None
        gone = next((row for row in others if row.peer is None), None)
        if gone is None:
            return False, None
        del self._by_worker[gone.worker]
        return True, gone.worker

    def _is_newest(self, worker: int, uid: str, expected_uid: str) -> bool:
        """Returns whether a pod is to be followed rather than the one that is connected as this worker.

        A pod that was deleted may live on for its grace period, or for good on a node whose kubelet is lost, and would
        take the place of the new one again and again.
        """
        row = self._by_worker.get(worker)
        if row is None or row.peer is None or row.uid == uid:
            return True
        if expected_uid in (uid, row.uid):
            return uid == expected_uid
        return uid not in row.replaced

    def join(self, row: Worker) -> Optional[int]:
        """A follower has said who it is. Returns its earlier connection, which has to be closed, if there is one."""
        before = self._by_worker.get(row.worker)
        closed = None if before is None else before.peer
        if before is not None:
            row.replaced = before.replaced
            if closed is not None and before.uid != row.uid:
                others = (uid for uid in before.replaced if uid not in (before.uid, row.uid))
                row.replaced = (*others, before.uid)[-MAX_REPLACED:]
        if closed is not None:
            del self._by_peer[closed]
        self._by_worker[row.worker] = row
        if row.peer is not None:
            self._arriving.pop(row.peer, None)
            self._by_peer[row.peer] = row
        return closed

    def leave(self, peer: int) -> Optional[Worker]:
        """A connection has ended. Returns its worker, None where it hadn't said who it is."""
        self._arriving.pop(peer, None)
        row = self._by_peer.pop(peer, None)
        if row is not None:
            row.peer = None
        return row
