"""Network owns all of an agent's connections; the leader and the follower decide about them.

Each connection calls Network when data has arrived or the other side has closed it. Network lets the leader or the
follower decide, and carries out their requests at once (`Connections`). It passes messages for the planner to
`deliver`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Optional

from trainmaster_operator.agent.connection import JsonLines, Pace, PeerConnection
from trainmaster_operator.agent.http import BadRequest, response
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network.connections import Delivery
from trainmaster_operator.agent.network.follower import Follower
from trainmaster_operator.agent.network.joining import Joining
from trainmaster_operator.agent.network.leader import Leader
from trainmaster_operator.agent.network.server import Answer, Server, json_of
from trainmaster_operator.agent.planner.state import LeaderContact, Now
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import FollowerMessage
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES, MAX_REQUEST
from trainmaster_operator.wire.stream import EvidenceLine, ProgressLine, split
from trainmaster_operator.wire.values import ProtocolError, mapping, whole

FOLLOWER_BURST_BYTES, FOLLOWER_BYTES_PER_SECOND = 524_288, 262_144
"""If a follower sends faster, its data is read more slowly. The progress of eight ranks takes 4 KiB a second; evidence
takes 64 KiB."""
MAX_FOLLOWER_PENDING_BYTES = 1_048_576
"""The limit of the bytes that a follower hasn't read yet; an assignment has at most 256 KiB."""
LEADER_BURST_BYTES, LEADER_BYTES_PER_SECOND = 2_097_152, 1_048_576
"""If a leader sends faster, its data is read more slowly; an assignment has at most 256 KiB."""


def present() -> Now:
    return Now(time.monotonic(), time.time())


class Network:
    """Network owns the connections.

    `answers` are the executor's answers to requests for its state and metrics, and to a pushed assignment.
    """

    def __init__(
        self,
        loop: Loop,
        settings: AgentSettings,
        deliver: Callable[[Delivery], None],
        answers: Mapping[tuple[str, str], Answer],
    ) -> None:
        self._loop, self._settings, self.deliver = loop, settings, deliver
        now = time.monotonic()
        self.leader = Leader(settings, now, self)
        may_join = bool(settings.port and settings.agents_secret)
        self.follower = Follower(settings.worker, may_join, now, self)
        own = {("POST", "/v1/ack"): self._acknowledge, ("POST", "/v1/collect"): self._collect}
        self.server = Server(loop, settings, {**answers, **own}, self.upgraded)
        self._numbers = itertools.count(1)
        self._peers: dict[int, PeerConnection] = {}
        """The connections to followers, watching operators and the leader, by number. No number is used twice."""
        self._joining: Optional[Joining] = None

    @property
    def deadline(self) -> float:
        return min(self.leader.deadline, self.follower.deadline)

    @property
    def leads(self) -> bool:
        return self.follower.leader == self._settings.worker

    def contact(self, now: Now) -> LeaderContact:
        leader = self.follower.leader
        # While the leader is unknown, an operator may be watching it.
        watched = self.leader.is_watched(now.steady) if self.leads else self.follower.watched or leader is None
        gathered = max(self.follower.gathered, self.leader.gathered if self.leads else 0)
        return LeaderContact(leader, watched, self.follower.master, gathered)

    def tick(self, now: Now) -> None:
        if now.steady >= self.leader.deadline:
            self.leader.tick(now)
        if now.steady >= self.follower.deadline:
            self.follower.tick(now.steady)

    # The executor's requests

    def assign(self, assignment: Assignment, now: Now) -> None:
        self.leader.assign(assignment)
        self.follower.assign(assignment, now.steady)

    def introduce(self, messages: Iterable[FollowerMessage]) -> None:
        self.follower.introduce([part for message in messages for part in _split(message)])

    def publish(self, message: FollowerMessage, now: Now) -> None:
        """Send a message to the leader, and add it to this agent's own table, which an operator may watch."""
        for part in _split(message):
            self.leader.receive(part, now, leads=self.leads)
            self.follower.send(part)

    def send_to_leader(self, message: FollowerMessage, now: Now) -> None:
        for part in _split(message):
            if self.leads:
                self.leader.receive(part, now)
            else:
                self.follower.send(part)

    # The operator's requests

    def _acknowledge(self, body: bytes) -> bytes:
        seq = whole(mapping(json_of(body)).get("seq"))
        if seq is None:
            raise BadRequest(400, "seq is not a whole number of at least 0")
        self.leader.acknowledge(seq)
        return response(204)

    def _collect(self, body: bytes) -> bytes:
        request = mapping(json_of(body)).get("request")
        if not isinstance(request, str) or not 0 < len(request) <= MAX_REQUEST:
            raise BadRequest(400, f"request is not a text of 1 to {MAX_REQUEST} characters")
        self.leader.collect(request, present())
        return response(204)

    # Connections

    def upgraded(self, connection: PeerConnection, is_follower: bool, rest: bytes) -> None:
        """Take over a follower's connection or an operator's stream. `rest` contains the bytes after the request."""
        leader, now, number = self.leader, present(), next(self._numbers)
        if is_follower:
            connection.most_pending = MAX_FOLLOWER_PENDING_BYTES
            pace = Pace(FOLLOWER_BURST_BYTES, FOLLOWER_BYTES_PER_SECOND, now.steady)
            self._add(number, connection, lambda: leader.leave(number))
            leader.arrive(number, now)
            self._read_lines(connection, JsonLines(), pace, partial(leader.receive_line, number), rest)
        else:
            self._add(number, connection, lambda: leader.unwatch(number, present()))
            # An operator sends nothing on its stream.
            connection.on_data = connection.read
            leader.watch(number, now)

    def _add(self, number: int, connection: PeerConnection, ended: Callable[[], None]) -> None:
        def end() -> None:
            if self._peers.pop(number, None) is not None:
                ended()

        connection.on_end = end
        self._peers[number] = connection

    def _tried(self, connection: Optional[PeerConnection], rest: bytes, resolved: bool, problem: str) -> None:
        self._joining = None
        follower, now = self.follower, present()
        if connection is None:
            follower.tried(None, resolved, problem, now.steady)
            return
        number = next(self._numbers)
        self._add(number, connection, lambda: follower.closed(number, time.monotonic()))
        follower.tried(number, resolved, problem, now.steady)
        pace = Pace(LEADER_BURST_BYTES, LEADER_BYTES_PER_SECOND, now.steady)
        receive = partial(follower.receive_line, number)
        self._read_lines(connection, JsonLines(MAX_ASSIGNMENT_BYTES), pace, receive, rest)

    def _read_lines(
        self,
        connection: PeerConnection,
        lines: JsonLines,
        pace: Pace,
        receive: Callable[[Mapping[str, Any], Now], None],
        first: bytes,
    ) -> None:
        """Read the lines of a follower or the leader; `first` are the bytes that have already been read."""

        def read(data: Optional[bytes]) -> None:
            if not data:
                return
            before, now = lines.count, present()
            try:
                for line in lines.feed(data):
                    receive(line, now)
                    if connection.closed:
                        # The leader or the follower has closed the connection because of this line, or an answer to it
                        # exceeded the connection's buffer.
                        return
            except ProtocolError:
                connection.close()
                connection.on_end()
                return
            wait = pace.spend(len(data), lines.count - before, now.steady)
            if wait:
                connection.pause(wait)

        connection.on_data = lambda: read(connection.read())
        read(first)

    # Requests of the leader and the follower (`Connections`)

    def send(self, peers: Iterable[int], data: bytes) -> None:
        for number in peers:
            self._peers[number].send(data)

    def stream(self, peers: Iterable[int], data: bytes) -> None:
        # This is a chunk of a chunked body (RFC 9112, section 7.1). An empty chunk would end the body.
        self.send(peers, b"%x\r\n%s\r\n" % (len(data), data))

    def close(self, peer: int) -> None:
        connection = self._peers.pop(peer, None)
        if connection is not None:
            connection.close()

    def try_host(self, host: str) -> None:
        if self._joining is not None:
            self._joining.cancel()
        self._joining = Joining(self._loop, self._settings, host, self._tried) if host else None


def _split(message: FollowerMessage) -> Sequence[FollowerMessage]:
    """Splits a message with many ranks into messages whose lines a reader accepts."""
    if isinstance(message, ProgressLine):
        return split(message)
    return split(message) if isinstance(message, EvidenceLine) else [message]
