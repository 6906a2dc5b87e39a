"""The members that have joined a lead: who they are, who may still come in, and what is said to all of them.

What one member may have kept and queued here is bounded, so their number is too: by the job's workers, and a few more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Optional

from trainmaster.agent.network.connection import Connection

MAX_OTHERS = 256
"""Members that the assignment doesn't name, such as pods that wait for an elastic job to grow."""
MAX_ARRIVING = 256
HELLO_SECONDS = 10.0
"""Who has joined says within so long who it is."""


class Member:
    """One worker as the lead knows it."""

    def __init__(self, worker: int, uid: str, connection: Optional[Connection]) -> None:
        self.worker = worker
        self.uid = uid
        self.connection = connection
        self.seen = 0
        self.heard_at = time.monotonic()
        self.environment: dict[str, str] = {}
        self.environment_attempt = 0
        """The attempt that started in this environment: files such as the configuration may change between two."""

    @property
    def connected(self) -> bool:
        """Whether the lead can tell it something."""
        return self.connection is not None and not self.connection.closed

    def to_wire(self, own: bool) -> dict[str, Any]:
        """Its entry in the stream."""
        return {"worker": self.worker, "uid": self.uid, "seen": self.seen, "connected": own or self.connected}


class Members:
    """The table by worker index; `own` is the lead's worker, `forgotten` is called with a worker that gave way."""

    def __init__(self, own: Member, forgotten: Callable[[int], None]) -> None:
        self.own = own
        self.by_worker = {own.worker: own}
        self._forgotten = forgotten
        self._arriving: dict[Connection, float] = {}
        """Who has joined and not yet said who it is, and since when."""

    def arrive(self, connection: Connection) -> None:
        """A connection that will say who it is; the oldest such one gives way where there are too many."""
        while len(self._arriving) >= MAX_ARRIVING:
            self.turn_away(next(iter(self._arriving)))
        self._arriving[connection] = time.monotonic()

    def arrived(self, connection: Connection) -> None:
        """It has said who it is, or has gone."""
        self._arriving.pop(connection, None)

    def turn_away(self, connection: Connection) -> None:
        """Close a connection that didn't say who it is, or may not come in."""
        self.arrived(connection)
        connection.close()

    def turn_away_late(self) -> None:
        """Close those that should have said who they are by now."""
        late = time.monotonic() - HELLO_SECONDS
        for connection in [one for one, since in self._arriving.items() if since < late]:
            self.turn_away(connection)

    def make_room(self, worker: int, named: frozenset[int]) -> bool:
        """Whether a worker may come in; one that isn't `named` by the assignment may need another's place."""
        if worker == self.own.worker:
            return False
        if worker in named or worker in self.by_worker:
            return True
        others = [member for member in self.by_worker.values() if member.worker not in named and member is not self.own]
        if len(others) < MAX_OTHERS:
            return True
        gone = next((member for member in others if not member.connected), None)
        if gone is None:
            return False
        del self.by_worker[gone.worker]
        self._forgotten(gone.worker)
        return True

    def tell(self, line: bytes) -> None:
        """Send a line to all who are connected."""
        for member in self.by_worker.values():
            if member.connected and member.connection is not None:
                member.connection.send(line)
