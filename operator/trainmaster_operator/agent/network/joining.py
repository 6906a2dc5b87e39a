"""A try to join a host resolves its name, connects and requests the upgrade. It is bounded in time and never blocks.

Names are resolved by the hosts file first, then by DNS in a thread, because getaddrinfo(3) can block for many seconds.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Optional

from trainmaster_operator.agent.connection import PeerConnection
from trainmaster_operator.agent.http import UPGRADE_PROTOCOL
from trainmaster_operator.agent.loop import WRITE, Loop
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import TOKEN_HEADER
from trainmaster_operator.wire.signing import job_token

LIMIT_SECONDS = 1.0
MAX_UPGRADE_BYTES = 4_096


Done = Callable[[Optional[PeerConnection], bytes, bool, str], None]
"""A function that takes the connection (None: the try failed), the bytes after the answer, whether the host's name was
resolved, and the problem."""


class Joining:
    """Joining is one try to join. It calls `done` once, from the loop, unless it is cancelled."""

    def __init__(self, loop: Loop, settings: AgentSettings, host: str, done: Done) -> None:
        self._loop, self._settings, self._host, self._done = loop, settings, host, done
        self._over = False
        self._address = ""
        self._sock: socket.socket | None = None
        self._connection: PeerConnection | None = None
        self._answer = b""
        self._timer = loop.call_later(LIMIT_SECONDS, lambda: self._failed(f"no answer within {LIMIT_SECONDS:g} s"))
        address = host if _family(host) else lookup_hosts(settings.hosts_file, host)
        if address:
            loop.call_soon(lambda: self._resolved(_family(address), address, ""))
        else:
            import threading

            threading.Thread(target=self._resolve, name="resolve", daemon=True).start()

    def cancel(self) -> None:
        self._over = True
        self._timer.cancel()
        if self._sock is not None:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
        if self._connection is not None:
            self._connection.close()

    def _resolve(self) -> None:
        family, address, problem = 0, "", ""
        try:
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)[0]
            family, address = found[0], str(found[4][0])
        except (OSError, UnicodeError) as error:
            problem = str(error)
        self._loop.call_soon(lambda: self._resolved(family, address, problem))

    def _resolved(self, family: int, address: str, problem: str) -> None:
        if self._over:
            return
        if not address:
            self._failed(problem)
            return
        self._address = address
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        code = self._sock.connect_ex((address, self._settings.port))
        if code in (0, errno.EINPROGRESS):
            self._loop.watch(self._sock.fileno(), WRITE, self._connected)
        else:
            self._failed(os.strerror(code))

    def _connected(self, _events: int) -> None:
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(os.strerror(code))
            return
        connection = self._connection = PeerConnection(self._loop, self._sock)
        self._sock = None
        connection.on_data = lambda: self._read(connection)
        connection.on_end = lambda: self._failed("the connection was closed before an answer")
        token = job_token(self._settings.agents_secret, self._settings.job_uid)
        connection.send(
            (
                f"GET /v1/join HTTP/1.1\r\nHost: {self._host}\r\n{TOKEN_HEADER}: {token}\r\n"
                f"Connection: Upgrade\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n\r\n"
            ).encode()
        )

    def _read(self, connection: PeerConnection) -> None:
        self._answer += connection.read() or b""
        answer, separator, rest = self._answer.partition(b"\r\n\r\n")
        if not separator and len(answer) <= MAX_UPGRADE_BYTES:
            return
        if not separator or not answer.startswith(b"HTTP/1.1 101"):
            # The host answers but refuses: it isn't an agent, has no assignment yet, or has another token.
            first = answer[:40].decode("latin-1").splitlines()[0] if answer.strip() else "nothing"
            self._failed(f"answered {first!r}")
            return
        self._connection = None
        self.cancel()
        self._done(connection, rest, True, "")

    def _failed(self, problem: str) -> None:
        if not self._over:
            self.cancel()
            where = f"{self._host} ({self._address or 'no address'}) port {self._settings.port}: {problem}"
            self._done(None, b"", bool(self._address), where)


MAX_HOSTS_BYTES = 1_048_576


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
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
    except (OSError, ValueError):
        return 0
    return family


def with_master_address(settings: AgentSettings, assignment: Assignment, node_rank: int) -> Assignment:
    """Returns the assignment with the master's address in place of its name, if it is known."""
    address = lookup_hosts(settings.hosts_file, assignment.master)
    if assignment.master == assignment.hosts[node_rank]:
        # Rank 0 uses its own address, because DNS and the hosts file may lack its name for a while.
        address = settings.pod_ip or address
    hosts = list(assignment.hosts)
    hosts[assignment.master_place] = address or assignment.master
    return assignment._replace(hosts=tuple(hosts))
