"""Network owns all of an agent's connections; the leader and the follower decide about them.

Sockets put events into the executor's queue. The executor passes them back to `handle`, which lets the leader or the
follower decide and performs their actions. Messages for the planner are collected for `deliveries`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.connection import Closed, JsonLines, Pace, PeerConnection, Readable
from trainmaster_operator.agent.http import chunk
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network.follower import Follower
from trainmaster_operator.agent.network.joining import Joining, Tried
from trainmaster_operator.agent.network.leader import Leader
from trainmaster_operator.agent.network.messages import (
    OWN,
    Acknowledged,
    Close,
    Connected,
    ConnectionEvent,
    Deliver,
    Delivery,
    FollowerAction,
    LeaderAction,
    NetworkEvent,
    Resolved,
    Send,
    SendToStreams,
    StacksRequested,
    TimedOut,
    Try,
    Upgraded,
)
from trainmaster_operator.agent.network.server import Server
from trainmaster_operator.agent.planner.state import LeaderContact, Now
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import FollowerMessage
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, OutputLine, ProgressLine, split
from trainmaster_operator.wire.values import ProtocolError

FOLLOWER_BURST_BYTES, FOLLOWER_BYTES_PER_SECOND = 524_288, 262_144
"""A follower that sends faster is read more slowly. Eight ranks' progress is 4 KiB a second; evidence is 64 KiB."""
MAX_FOLLOWER_PENDING_BYTES = 1_048_576
"""The limit of a follower's unread bytes; an assignment is at most 256 KiB."""
LEADER_BURST_BYTES, LEADER_BYTES_PER_SECOND = 2_097_152, 1_048_576
"""A leader that sends faster is read more slowly; an assignment is at most 256 KiB."""


class Peer(NamedTuple):
    """Peer is a connection that carries lines, read at a bounded pace."""

    connection: PeerConnection
    lines: JsonLines
    pace: Pace


class Network:
    """Network owns the connections. `put` puts an event into the executor's queue."""

    def __init__(self, loop: Loop, settings: AgentSettings, put: Callable[[NetworkEvent], None], now: Now) -> None:
        self._loop = loop
        self._settings = settings
        self._put = put
        self._numbers = itertools.count(OWN + 1)
        self.leader = Leader(settings.worker, settings.pod_uid, settings.job_uid, settings.processes, now.steady)
        may_join = bool(settings.port and settings.agents_secret)
        self._follower = Follower(settings.worker, may_join, now.steady)
        self.server = Server(loop, settings, put, self._numbers)
        self._followers: dict[int, Peer] = {}
        self._streams: dict[int, PeerConnection] = {}
        self.leaders: dict[int, Peer] = {}
        """The connection to the leader, if another worker leads, and for a moment that to the previous leader."""
        self._joining: Optional[Joining] = None
        self._deliveries: list[Delivery] = []

    def open(self) -> None:
        """Listen on the agents' port, if there is one; raises LaunchError with a message on failure."""
        if self._settings.port:
            self.server.open()

    # Knowledge

    @property
    def deadline(self) -> float:
        return min(self.leader.deadline, self._follower.deadline)

    def contact(self, now: Now) -> LeaderContact:
        """Returns this worker's contact with its leader."""
        leader = self._follower.leader
        if leader == self._settings.worker:
            watched = self.leader.is_watched(now.steady)
        else:
            # While the leader is unknown, an operator may be watching it.
            watched = self._follower.watched or leader is None
        return LeaderContact(leader, watched, self._follower.master)

    def deliveries(self) -> list[Delivery]:
        """Returns the messages for the planner since the last call."""
        found, self._deliveries = self._deliveries, []
        return found

    # The executor's requests

    def assign(self, assignment: Assignment, now: Now) -> None:
        """Apply an accepted higher assignment."""
        self._lead(self.leader.assign(assignment))
        self._follow(self._follower.assign(assignment, now.steady))

    def hurry(self, now: Now) -> None:
        """Try to reach worker 0 more often for a while, because an attempt waits for it."""
        self._follow(self._follower.hurry(now.steady))

    def leave_leader(self, now: Now) -> None:
        """Try to join another leader, because the present one doesn't answer."""
        self._follow(self._follower.abandon(now.steady))

    def introduce(self, messages: Iterable[FollowerMessage]) -> None:
        """Introduce this worker to a newly joined leader."""
        self._follow(self._follower.introduce([part for message in messages for part in _split(message)]))

    def publish(self, message: FollowerMessage, now: Now) -> None:
        """Send a message to the leader, and add it to this agent's own table, which an operator may watch."""
        leads = self._follower.leader == self._settings.worker
        for part in _split(message):
            self._lead(self.leader.receive(part, now, leads=leads))
            self._follow(self._follower.send(part))

    def send_to_leader(self, message: FollowerMessage, now: Now) -> None:
        """Send a message to the leader only."""
        for part in _split(message):
            if self._follower.leader == self._settings.worker:
                self._lead(self.leader.receive(part, now))
            else:
                self._follow(self._follower.send(part))

    def record(self, report: Report) -> None:
        """Keep another worker's report, sent by the leader."""
        self._lead(self.leader.record(report))

    def hand_over(self, line: OutputLine, now: Now) -> None:
        """Send the last output to the leader; if this worker leads, send it to the next one with all kept outputs."""
        self.send_to_leader(line, now)
        if self._follower.leader == self._settings.worker:
            self._lead(self.leader.hand_over())

    def keep_output(self, line: OutputLine) -> None:
        """Keep another worker's last output, which the leader sends when its agent ends."""
        self._lead(self.leader.keep_output(line))

    # Events

    def tick(self, now: Now) -> None:
        if now.steady >= self.leader.deadline:
            self._lead(self.leader.tick(now))
        if now.steady >= self._follower.deadline:
            self._follow(self._follower.tick(now.steady))

    def handle(self, event: ConnectionEvent, now: Now) -> None:
        """Handle an event of a connection. Late results are ignored."""
        if isinstance(event, Readable):
            self._read(event.peer, now)
        elif isinstance(event, Closed):
            self._closed(event.peer, now)
        elif isinstance(event, Upgraded):
            self._upgraded(event, now)
        elif isinstance(event, Acknowledged):
            self._lead(self.leader.acknowledge(event.seq))
        elif isinstance(event, StacksRequested):
            self._lead(self.leader.collect(event.request, now))
        elif self._joining is not None and isinstance(event, (Resolved, Connected, TimedOut)):
            self._tried(self._joining.handle(event), now)

    def _read(self, peer: int, now: Now) -> None:
        if self.server.read(peer):
            return
        if peer in self._followers:
            self._read_lines(self._followers[peer], now)
        elif peer in self._streams:
            # An operator sends nothing on its stream.
            self._streams[peer].read()
        elif peer in self.leaders:
            self._read_lines(self.leaders[peer], now)
        elif self._joining is not None and self._joining.peer == peer:
            self._tried(self._joining.read(), now)

    def _closed(self, peer: int, now: Now) -> None:
        if self.server.closed(peer):
            return
        if self._followers.pop(peer, None) is not None:
            self._lead(self.leader.leave(peer))
        elif self._streams.pop(peer, None) is not None:
            self._lead(self.leader.unwatch(peer, now))
        elif self.leaders.pop(peer, None) is not None:
            self._follow(self._follower.closed(peer, now.steady))
        elif self._joining is not None and self._joining.peer == peer:
            self._tried(self._joining.closed(), now)

    def _upgraded(self, event: Upgraded, now: Now) -> None:
        connection = event.connection
        if connection.closed:
            return
        if event.is_follower:
            connection.most_pending = MAX_FOLLOWER_PENDING_BYTES
            pace = Pace(FOLLOWER_BURST_BYTES, FOLLOWER_BYTES_PER_SECOND, now.steady)
            peer = self._followers[connection.peer] = Peer(connection, JsonLines(), pace)
            self._lead(self.leader.arrive(connection.peer, now))
            self._read_lines(peer, now, event.rest)
        else:
            self._streams[connection.peer] = connection
            self._lead(self.leader.watch(connection.peer, now))

    def _tried(self, tried: Optional[Tried], now: Now) -> None:
        """Handle the result of a try, if there is one yet."""
        if tried is None:
            return
        self._joining = None
        number = None
        if tried.connection is not None:
            number = tried.connection.peer
            pace = Pace(LEADER_BURST_BYTES, LEADER_BYTES_PER_SECOND, now.steady)
            self.leaders[number] = Peer(tried.connection, JsonLines(MAX_ASSIGNMENT_BYTES), pace)
        self._follow(self._follower.tried(tried.number, number, tried.resolved, tried.problem, now.steady))
        if number in self.leaders and tried.rest:
            self._read_lines(self.leaders[number], now, tried.rest)

    def _read_lines(self, peer: Peer, now: Now, first: bytes = b"") -> None:
        """Read the new lines of a follower or the leader; `first` are the bytes that have already been read."""
        connection, lines = peer.connection, peer.lines
        data = first or connection.read()
        if not data:
            return
        before = lines.count
        try:
            for line in lines.feed(data):
                if connection.peer in self._followers:
                    self._lead(self.leader.receive_line(connection.peer, line, now))
                else:
                    self._follow(self._follower.receive_line(connection.peer, line, now.steady))
                if connection.closed:
                    # The line made the leader or follower close the connection, or an answer exceeded its buffer.
                    return
        except ProtocolError:
            connection.close()
            self._closed(connection.peer, now)
            return
        wait = peer.pace.spend(len(data), lines.count - before, now.steady)
        if wait:
            connection.pause(wait)

    # Decisions of the leader and the follower

    def _lead(self, actions: Sequence[LeaderAction]) -> None:
        self._perform(actions, self._followers)

    def _follow(self, actions: Sequence[FollowerAction]) -> None:
        self._perform(actions, self.leaders)

    def _perform(self, actions: Sequence[Union[LeaderAction, FollowerAction]], peers: Mapping[int, Peer]) -> None:
        """Perform the actions; `peers` are the receivers of their lines."""
        for action in actions:
            if isinstance(action, Deliver):
                self._deliveries.append(action.message)
            elif isinstance(action, Close):
                self._close(action.peer)
            elif isinstance(action, SendToStreams):
                data = chunk(action.data)
                for number in action.peers:
                    self._streams[number].send(data)
            elif isinstance(action, Send):
                for number in action.peers:
                    peers[number].connection.send(action.data)
            else:
                if self._joining is not None:
                    self._joining.cancel()
                    self._joining = None
                if isinstance(action, Try):
                    number, host = action.number, action.host
                    self._joining = Joining(self._loop, self._settings, number, host, self._put, self._numbers)

    def _close(self, number: int) -> None:
        for peers in (self._followers, self.leaders):
            if number in peers:
                peers.pop(number).connection.close()
        if number in self._streams:
            self._streams.pop(number).close()


def _split(message: FollowerMessage) -> Sequence[FollowerMessage]:
    """Splits a message with many ranks into messages whose lines a reader accepts."""
    if isinstance(message, ProgressLine):
        return split(message)
    return split(message) if isinstance(message, EvidenceLine) else [message]
