"""A follower joins its leader, the first of the assignment's hosts that answers, and returns to earlier hosts.

All agents try the same hosts in the same order, so they meet at the first living host without an election. If all hosts
before this worker's own are lost, this worker leads. While the leader isn't the first host, the follower retries the
hosts before the leader's, soon at first and then every second. Pure: each method takes an event and the time, and acts
through `Connections`; `tick` is due at `deadline`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from trainmaster_operator.agent.connection import json_line
from trainmaster_operator.agent.network.connections import Connections
from trainmaster_operator.agent.network.leader import PING_SECONDS, SILENCE_SECONDS
from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.agent.planner.state import NO_ASSIGNMENT, MasterContact, Now
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import FollowerMessage, Gathered, Seen, Watched, parse_from_leader
from trainmaster_operator.wire.stream import Ping
from trainmaster_operator.wire.values import ProtocolError

RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
HURRY_SECONDS = 3.0
HURRIED_RETRY_SECONDS = 0.1
NO_PLACE = 1 << 31
"""The place of an unknown leader in the order of succession, after all workers."""


class Follower:
    """Follower finds its leader. `may_join` is False if agents report only by exiting; `now` is a monotonic time."""

    def __init__(self, worker: int, may_join: bool, now: float, connections: Connections) -> None:
        self._connections, self._worker, self._may_join = connections, worker, may_join
        self._assignment = NO_ASSIGNMENT
        self._peer: Optional[int] = None
        self._introduced = False
        """Whether this worker was introduced to the leader. The introduction contains all earlier messages."""
        self._admitted = False
        """Whether the joined leader has sent anything."""
        self._leader_uid = ""
        """The uid of the joined leader's pod; empty until the leader has sent it."""
        self._received_at = now
        self._trying: Optional[int] = None
        """The index of the host that is being tried, in the assignment's list; None: no try is in progress."""
        self._rounds = 0
        self._retry_at = math.inf
        self._hurried_until = now
        self._ping_at = now + PING_SECONDS
        self._first = MasterContact(False, False, "not tried yet")
        self.leader: Optional[int] = None
        """The leader's worker index, which is this worker's own if it leads; None while unknown."""
        self.watched = False
        """Whether an operator watches the leader, if another worker leads."""
        self.gathered = 0
        """The newest attempt whose workers have all joined the leader. Without the agents' secret, nobody waits."""

    # Knowledge

    @property
    def deadline(self) -> float:
        return min(self._retry_at, self._ping_at)

    @property
    def master(self) -> MasterContact:
        """Returns this worker's contact with the first host."""
        if not self._may_join or self._own_place() == 0 or self._leader_place() == 0:
            return MasterContact(True, True)
        return self._first

    # Events

    def assign(self, assignment: Assignment, now: float) -> None:
        """Follow a new assignment; stay with the leader if it is still the first host that answers."""
        before, self._assignment = self._assignment, assignment
        if not self._may_join:
            self.leader, self.gathered = self._worker, assignment.attempt
            return
        self.send(Seen(assignment.attempt))
        if self._is_old_pod():
            # The leader's worker has a new pod. The joined pod may still run on an unreachable node.
            self._lose(now)
        elif before.hosts != assignment.hosts:
            if self._own_place() < self._leader_place():
                # This worker now precedes its leader, as a spare that has become the first worker does. The leader may
                # follow this worker itself, and then nobody would lead.
                self._leave()
            self._rounds = 0
            self._begin_round(now)

    def hurry(self, now: float) -> None:
        """Try the first host now, and more often for a while, because an attempt waits for it."""
        self._hurried_until = now + HURRY_SECONDS
        if self._retry_at < math.inf:
            self._begin_round(now)

    def abandon(self, now: float) -> None:
        """Try to join another leader, because the present one doesn't answer."""
        if self._peer is not None:
            self._lose(now)

    def introduce(self, messages: Iterable[FollowerMessage]) -> None:
        """Introduce this worker to a newly joined leader: send everything that the leader can't know yet."""
        self._introduced = True
        for message in messages:
            self.send(message)

    def tried(self, peer: Optional[int], resolved: bool, problem: str, now: float) -> None:
        """Handle the result of the present try: `peer` is the connection, or None if there was a problem."""
        position = self._trying
        assert position is not None
        self._trying = None
        if position == 0:
            self._first = MasterContact(peer is not None, resolved, problem)
        if peer is None:
            self._try(position + 1, now)
        else:
            self._leave()
            self._join(peer, self._assignment.workers[position], now)

    def receive_line(self, peer: int, data: Mapping[str, Any], now: Now) -> None:
        """Handle a line from the leader. Anything but the protocol's messages is ignored."""
        if peer != self._peer:
            return
        self._received_at = now.steady
        if not self._admitted:
            self._admitted, self._rounds = True, 0
        try:
            message = parse_from_leader(data)
        except ProtocolError:
            return
        if isinstance(message, Watched):
            self.watched = message.value
            self._leader_uid = message.uid or self._leader_uid
            if self._is_old_pod():
                # The leader's name still resolves to the old address.
                self._leave()
                self._retry_at = now.steady + RETRY_SECONDS[-1]
        elif isinstance(message, Gathered):
            self.gathered = max(self.gathered, message.attempt)
        elif not isinstance(message, Ping):
            self._connections.deliver(message)

    def closed(self, peer: int, now: float) -> None:
        if peer == self._peer:
            self._peer = None
            if self._admitted:
                self._lose(now)
            else:
                # The leader has refused this pod, because it knows a newer pod of this worker, or can't take another
                # worker. It would refuse again at once.
                self._leave()
                self._retry_later(now)

    def tick(self, now: float) -> None:
        if now >= self._ping_at:
            self._ping_at = now + PING_SECONDS
            if self._peer is not None and now - self._received_at > SILENCE_SECONDS:
                # The connection is half-open, because the leader's machine is gone.
                self._lose(now)
            self.send(Ping())
        if now >= self._retry_at:
            self._begin_round(now)

    # The order of succession

    def _leader_place(self) -> int:
        workers = self._assignment.workers
        return workers.index(self.leader) if self.leader in workers else NO_PLACE

    def _own_place(self) -> int:
        """Returns this worker's place in the order of succession; after all workers if the assignment lacks it."""
        workers = self._assignment.workers
        return workers.index(self._worker) if self._worker in workers else len(workers)

    def _begin_round(self, now: float) -> None:
        self._retry_at = math.inf
        if self._trying is not None:
            self._trying = None
            self._connections.try_host("")
        self._try(0, now)

    def _try(self, position: int, now: float) -> None:
        """Try the host at `position`, if it is before this worker and its present leader; else end the round."""
        assignment = self._assignment
        own = self._own_place()
        if position < min(own, self._leader_place()):
            self._trying = position
            self._connections.try_host(assignment.hosts[position])
            return
        if self.leader is None and own < len(assignment.workers):
            self.leader = self._worker
        if min(own, self._leader_place()) > 0:
            self._retry_later(now)

    def _retry_later(self, now: float) -> None:
        wait = RETRY_SECONDS[min(self._rounds, len(RETRY_SECONDS) - 1)]
        if now < self._hurried_until:
            wait = min(wait, HURRIED_RETRY_SECONDS)
        self._rounds += 1
        self._retry_at = now + wait

    def _join(self, peer: int, worker: int, now: float) -> None:
        self._peer, self.leader, self._introduced, self._admitted = peer, worker, False, False
        self._received_at = now
        self._connections.deliver(LeaderJoined())
        if self._leader_place() > 0:
            # At a job's start, the first host may appear a moment after this one.
            self._retry_later(now)

    def _leave(self) -> None:
        if self._peer is not None:
            self._connections.close(self._peer)
        self._peer = self.leader = None
        self.watched = False
        self._leader_uid = ""

    def _lose(self, now: float) -> None:
        self._leave()
        self._rounds = 0
        self._begin_round(now)

    def _is_old_pod(self) -> bool:
        """Returns whether the joined leader's pod differs from the one in the assignment."""
        uids = self._assignment.uids
        place = self._leader_place()
        return bool(self._leader_uid and uids and place < len(uids) and uids[place] != self._leader_uid)

    def send(self, message: FollowerMessage) -> None:
        """Send to the joined leader, if there is one. A leader that is joined later gets everything again."""
        if self._peer is not None and self._introduced:
            self._connections.send((self._peer,), json_line(message.to_wire()))
