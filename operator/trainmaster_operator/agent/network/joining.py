"""Joining is one try to join a host: resolve, connect, request the upgrade. It is bounded in time and never blocks.

Names are resolved by the hosts file first, then by DNS in a thread, because getaddrinfo(3) can block for many seconds.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.connection import PeerConnection
from trainmaster_operator.agent.http import UPGRADE_PROTOCOL
from trainmaster_operator.agent.loop import WRITE, Loop
from trainmaster_operator.agent.network.messages import Connected, NetworkEvent, Resolved, TimedOut
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import TOKEN_HEADER
from trainmaster_operator.wire.signing import job_token

LIMIT_SECONDS = 1.0
MAX_UPGRADE_BYTES = 4_096


class Tried(NamedTuple):
    """Tried is a try's result: a connection, with the bytes after the answer in `rest`, or None and the problem."""

    number: int
    connection: Optional[PeerConnection]
    rest: bytes
    resolved: bool
    problem: str


class Joining:
    """Joining is one try to join. `handle` takes the try's events, and returns the result once it is known."""

    def __init__(
        self,
        loop: Loop,
        settings: AgentSettings,
        number: int,
        host: str,
        put: Callable[[NetworkEvent], None],
        peers: Iterator[int],
    ) -> None:
        self._loop = loop
        self.number = number
        self._host = host
        self._port = settings.port
        self._token = job_token(settings.agents_secret, settings.job_uid)
        self._put = put
        self._peers = peers
        self._address = ""
        self._sock: socket.socket | None = None
        self._connection: PeerConnection | None = None
        self._answer = b""
        self._timer = loop.call_later(LIMIT_SECONDS, lambda: put(TimedOut(number)))
        resolve(loop, number, host, settings.hosts_file, put)

    @property
    def peer(self) -> Optional[int]:
        """Returns the connection that requests the upgrade, or None before it is open."""
        return None if self._connection is None else self._connection.peer

    def cancel(self) -> None:
        self._timer.cancel()
        if self._sock is not None:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._sock = None
        if self._connection is not None:
            self._connection.close()

    def handle(self, event: Union[Resolved, Connected, TimedOut]) -> Optional[Tried]:
        """Takes the next step; ignores an event of an earlier try."""
        if event.number != self.number:
            return None
        if isinstance(event, Resolved):
            return self._resolved(event)
        if isinstance(event, Connected):
            return self._connected()
        return self._failed(f"no answer within {LIMIT_SECONDS:g} s")

    def closed(self) -> Tried:
        return self._failed("the connection was closed before an answer")

    def read(self) -> Optional[Tried]:
        """Reads the answer, or a piece of it."""
        connection = self._connection
        data = None if connection is None else connection.read()
        if connection is None or data is None:
            return None
        self._answer += data
        answer, separator, rest = self._answer.partition(b"\r\n\r\n")
        if not separator and len(answer) <= MAX_UPGRADE_BYTES:
            return None
        if not separator or not answer.startswith(b"HTTP/1.1 101"):
            # The host answers but refuses: it isn't an agent, has no assignment yet, or has another token.
            first = answer[:40].decode("latin-1").splitlines()[0] if answer.strip() else "nothing"
            return self._failed(f"answered {first!r}")
        self._connection = None
        self.cancel()
        return Tried(self.number, connection, rest, True, "")

    def _resolved(self, found: Resolved) -> Optional[Tried]:
        if not found.address:
            return self._failed(found.problem)
        self._address = found.address
        self._sock = socket.socket(found.family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        code = self._sock.connect_ex((found.address, self._port))
        if code not in (0, errno.EINPROGRESS):
            return self._failed(os.strerror(code))
        self._loop.watch(self._sock.fileno(), WRITE, self._writable)
        return None

    def _writable(self, _events: int) -> None:
        if self._sock is not None:
            self._loop.unwatch(self._sock.fileno())
            self._put(Connected(self.number))

    def _connected(self) -> Optional[Tried]:
        if self._sock is None:
            return None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return self._failed(os.strerror(code))
        sock, self._sock = self._sock, None
        self._connection = PeerConnection(self._loop, sock, next(self._peers), self._put)
        self._connection.send(
            (
                f"GET /v1/join HTTP/1.1\r\nHost: {self._host}\r\n{TOKEN_HEADER}: {self._token}\r\n"
                f"Connection: Upgrade\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n\r\n"
            ).encode()
        )
        return None

    def _failed(self, problem: str) -> Tried:
        self.cancel()
        where = f"{self._host} ({self._address or 'no address'}) port {self._port}: {problem}"
        return Tried(self.number, None, b"", bool(self._address), where)


MAX_HOSTS_BYTES = 1_048_576


def resolve(loop: Loop, number: int, name: str, hosts_file: str, put: Callable[[Resolved], None]) -> None:
    """Put a host's address into the queue, at once if `name` is an address or in the hosts file."""
    address = name if _family(name) else lookup_hosts(hosts_file, name)
    if address:
        put(Resolved(number, _family(address), address))
        return
    import threading

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0]
            result = Resolved(number, found[0], str(found[4][0]))
        except (OSError, UnicodeError) as error:
            result = Resolved(number, 0, "", str(error))
        loop.call_from_thread(lambda: put(result))

    threading.Thread(target=ask, name="resolve", daemon=True).start()


def lookup_hosts(path: str, name: str) -> str:
    """Returns a name's address in a file like /etc/hosts (hosts(5)), or ""."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_HOSTS_BYTES)
    except OSError:
        return ""
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if name in fields[1:] and _family(fields[0]):
            return fields[0]
    return ""


def _family(address: str) -> int:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except (OSError, ValueError):
            continue
        return family
    return 0


def with_master_address(settings: AgentSettings, assignment: Assignment, node_rank: int) -> Assignment:
    """Returns the assignment with the master's address in place of its name, if it is known."""
    address = lookup_hosts(settings.hosts_file, assignment.master)
    if assignment.master == assignment.hosts[node_rank]:
        # Rank 0 doesn't wait for its own name, which DNS or the hosts file may lack for a while.
        address = settings.pod_ip or address
    hosts = list(assignment.hosts)
    hosts[assignment.master_place] = address or assignment.master
    return assignment._replace(hosts=tuple(hosts))
