"""The way to the lead: joins the first of the assignment's hosts that answers, and goes back when an earlier one does.

Everybody tries the same hosts in the same order, so without any election all meet at the first that is alive; where all
before this worker are lost, it is the lead itself. While the lead isn't the first choice, the earlier ones are tried
again every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainmaster.agent.loop import Loop, Timer
from trainmaster.agent.network.connection import MAX_ASSIGNMENT_LINE_BYTES, BrokenLines, Connection, Lines, Pace
from trainmaster.agent.network.joining import Joined, Joining
from trainmaster.agent.network.leader import PING_SECONDS, SILENCE_SECONDS
from trainmaster.agent.planner.state import MasterContact
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.signing import job_token
from trainmaster.wire.values import text

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
HURRY_SECONDS = 3.0
HURRIED_RETRY_SECONDS = 0.1
LEAD_BURST_BYTES, LEAD_BYTES_PER_SECOND = 2_097_152, 1_048_576
"""A lead that sends faster is read slower; an assignment is at most 256 KiB."""


class Link:
    """See the module. `joined` asks for the lines to begin with (`introduce`), `receive` takes the lead's, `changed`
    says that `lead`, `followed` or `contact` may have changed."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        joined: Callable[[], None],
        receive: Callable[[dict[str, Any]], None],
        changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._may_join = bool(settings.port and settings.agents_secret)
        """Else outcomes travel by exit alone."""
        self._ask_for_introduction = joined
        self._introduced = False
        self._receive = receive
        self._changed = changed
        self._assignment: Assignment | None = None
        self._connection: Connection | None = None
        self._lines = Lines()
        self._pace = Pace(LEAD_BURST_BYTES, LEAD_BYTES_PER_SECOND)
        self._trying: Joining | None = None
        self._retry: Timer | None = None
        self._rounds = 0
        self._hurried_until = 0.0
        self._heard_at = 0.0
        self._lead_uid = ""
        """The pod that was joined, as soon as it has said so."""
        self._first = MasterContact(False, False, "not tried yet")
        self.lead: int | None = None
        """The lead's worker index; this worker's own where it leads; None while it isn't known."""
        self.followed = False
        """Whether an operator follows the lead, where that is another worker."""
        loop.call_every(PING_SECONDS, self._ping)

    @property
    def contact(self) -> MasterContact:
        """How far this worker has come on the way to the first host."""
        if self._assignment is None or not self._may_join or self._own_position() == 0 or self.lead_position() == 0:
            return MasterContact(True, True)
        return self._first

    def assignment_changed(self, assignment: Assignment) -> None:
        """Follow a new assignment: stay with the lead where it is still the first choice."""
        before, self._assignment = self._assignment, assignment
        if not self._may_join:
            self.lead = self._settings.worker
            return
        self.send({"type": "seen", "attempt": assignment.attempt})
        if self._joined_another():
            # The lead's worker has a new pod. The old one may live on, on a node that can't be reached.
            self._lost()
            return
        if before is None or before.hosts != assignment.hosts:
            if self.lead not in assignment.workers:
                self._leave()
            self._rounds = 0
            self._begin_round()

    def hurry(self) -> None:
        """An attempt waits for the first host: try it now, and more often for a while."""
        self._hurried_until = time.monotonic() + HURRY_SECONDS
        if self._retry is not None:
            self._begin_round()

    def leave_lead(self) -> bool:
        """Look for another lead, because the present one doesn't answer. False where none is joined."""
        if self._connection is None:
            return False
        self._lost()
        return True

    def introduce(self, lines: list[dict[str, Any]]) -> None:
        """Send what a lead that was joined has to know first."""
        if self._connection is not None and not self._introduced:
            self._introduced = True
            for line in lines:
                self._connection.send_line(line)

    def send(self, line: dict[str, Any]) -> None:
        """Send to the lead, where it is another worker and joined; each one that is joined gets everything again."""
        if self._connection is not None and self._introduced:
            self._connection.send_line(line)

    def lead_position(self) -> int:
        """The lead's place in the order of succession; after all of them where there is no lead."""
        if self._assignment is None or self.lead not in self._assignment.workers:
            return 1 << 31
        return self._assignment.workers.index(self.lead)

    def _own_position(self) -> int:
        """This worker's place in the order of succession; after all of them where it doesn't take part."""
        workers = () if self._assignment is None else self._assignment.workers
        return workers.index(self._settings.worker) if self._settings.worker in workers else len(workers)

    def _begin_round(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._trying is not None:
            self._trying.cancel()
        self._try(0)

    def _try(self, position: int) -> None:
        """Try the hosts from `position` on that come before this worker and before its present lead."""
        assignment = self._assignment
        if assignment is None:
            return
        self._trying = None
        own = self._own_position()
        if position < min(own, self.lead_position()):
            self._trying = Joining(
                self._loop,
                assignment.hosts[position],
                self._settings.port,
                job_token(self._settings.agents_secret, self._settings.job_uid),
                self._settings.hosts_file,
                lambda joined: self._tried(assignment, position, joined),
            )
            self._trying.begin()
            return
        if self.lead is None and own < len(assignment.workers):
            self.lead = self._settings.worker
            self._changed()
        if min(own, self.lead_position()) > 0:
            wait = RETRY_SECONDS[min(self._rounds, len(RETRY_SECONDS) - 1)]
            if time.monotonic() < self._hurried_until:
                wait = min(wait, HURRIED_RETRY_SECONDS)
            self._rounds += 1
            self._retry = self._loop.call_later(wait, self._begin_round)

    def _tried(self, assignment: Assignment, position: int, joined: Joined) -> None:
        if assignment.hosts != (self._assignment or assignment).hosts:
            return
        if position == 0:
            self._first = MasterContact(joined.connection is not None, joined.resolved, joined.problem)
            self._changed()
        if joined.connection is None:
            self._try(position + 1)
            return
        self._trying = None
        self._leave()
        self._join(joined.connection, assignment.workers[position], joined.rest)

    def _join(self, connection: Connection, worker: int, rest: bytes) -> None:
        self._connection = connection
        self.lead = worker
        self._lines = Lines(MAX_ASSIGNMENT_LINE_BYTES)
        self._pace = Pace(LEAD_BURST_BYTES, LEAD_BYTES_PER_SECOND)
        self._rounds = 0
        connection.on_data = self._received
        connection.on_close = self._lost
        self._introduced = False
        self._ask_for_introduction()
        if self.lead_position() > 0:
            self._retry = self._loop.call_later(RETRY_SECONDS[-1], self._begin_round)
        self._changed()
        self._received(rest)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self.followed = False
        self.lead = None
        self._lead_uid = ""

    def _joined_another(self) -> bool:
        """Whether the lead that was joined isn't the pod that the assignment names."""
        uids = None if self._assignment is None else self._assignment.uids
        position = self.lead_position()
        return bool(self._lead_uid and uids and position < len(uids) and uids[position] != self._lead_uid)

    def _lost(self) -> None:
        self._leave()
        self._rounds = 0
        self._begin_round()
        self._changed()

    def _received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        connection, lines = self._connection, self._lines
        before = lines.count
        try:
            for line in lines.feed(data):
                if line.get("type") == "watched":
                    self.followed = line.get("value") is True
                    self._lead_uid = text(line.get("uid"), 64) or self._lead_uid
                    if self._joined_another():
                        # Its name still leads to the old address.
                        self._leave()
                        self._retry = self._loop.call_later(RETRY_SECONDS[-1], self._begin_round)
                        self._changed()
                        return
                    self._changed()
                elif line.get("type") != "ping":
                    self._receive(line)
        except BrokenLines:
            self._lost()
            return
        wait = self._pace.spend(len(data), lines.count - before)
        if wait and connection is not None and not connection.closed:
            connection.pause(wait)

    def _ping(self) -> None:
        if self._connection is None:
            return
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            # A half-open connection: its machine went away without a word.
            self._lost()
        else:
            self.send({"type": "ping"})
