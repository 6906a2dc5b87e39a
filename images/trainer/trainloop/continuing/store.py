"""The ranks of a continued attempt meet in a store that one of them serves.

Torch's store (2.13) isn't used, because client and server look up the DNS name of each address that connects. If no DNS
server responds, for example because its node was lost, each lookup takes five seconds, and all ranks wait for it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import Store

#: The size limit of a request, which may contain a rank's addresses for all other ranks.
_LONGEST = 64 << 20
#: Seconds that a response may take in addition to the requested wait.
_ANSWERING = 10.0


class Server:
    """A server serves a store in a thread until it is closed."""

    def __init__(self, port: int) -> None:
        """Start serving. Raises OSError if the port is taken."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._socket = socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=4096)
        self._values = dict[str, str]()
        self._loop, self._closed, self._changed = asyncio.new_event_loop(), asyncio.Event(), asyncio.Condition()
        threading.Thread(target=self._run, daemon=True, name="store").start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, sock=self._socket, limit=_LONGEST)
        await self._closed.wait()
        server.close()  # without `wait_closed`, which from Python 3.12 on waits until all ranks have disconnected

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # These errors occur if the client has gone or isn't a rank, or if the store is closed.
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError, asyncio.CancelledError):
            while line := await reader.readline():
                answer = await self._do(*json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _do(self, what: str, keys: list[str], values: list[str], seconds: float) -> Any:
        """Process a rank's request; returns the keys' values, and None for keys that have none.

        The request "wait" first waits until all keys have values, for at most `seconds`.
        """
        if what == "wait":
            with suppress(TimeoutError):
                async with self._changed, asyncio.timeout(seconds):
                    await self._changed.wait_for(lambda: self._values.keys() >= set(keys))
        known = len(self._values)
        if what == "set":
            self._values |= zip(keys, values, strict=True)
        elif what == "add":
            number = int(bytes.fromhex(self._values.get(keys[0], b"0".hex()))) + int(values[0])
            self._values[keys[0]] = str(number).encode().hex()
        elif what == "delete":
            return [self._values.pop(key, None) for key in keys]
        if len(self._values) > known:
            async with self._changed:
                self._changed.notify_all()
        return [self._values.get(key) for key in keys]


class Client(Store):
    """A client accesses the store of one attempt, from any thread.

    It has those methods of torch's stores that groups call. A PrefixStore around a client is usable only while the
    client exists.
    """

    def __init__(self, host: str, port: int, attempt: int, server: Server | None = None) -> None:
        """`server` is closed when this client is garbage-collected. Raises OSError if no server responds."""
        super().__init__()
        self._address, self._prefix = (host, port), f"{attempt}/"
        self._seconds = 300.0
        self._of_thread = threading.local()
        if server is not None:
            weakref.finalize(self, server.close)
        self._connection()

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        return int(bytes.fromhex(self._ask("add", [key], [str(amount)])[0]))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values. Raises TimeoutError if that takes too long."""
        self._wait(keys, self._seconds if timeout is None else timeout.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        return None not in self._ask("see", keys)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", [key]) != [None]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [bytes.fromhex(value) for value in self._wait(keys, self._seconds)]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._ask("set", keys, [_hex(value) for value in values])

    def _wait(self, keys: Sequence[str], seconds: float) -> list[str]:
        values = self._ask("wait", keys, seconds=seconds)
        if None in values:
            raise TimeoutError(f"{', '.join(keys)} weren't set within {seconds:g} s")
        return list(values)

    def _ask(self, what: str, keys: Sequence[str], values: Sequence[str] = (), seconds: float = 0.0) -> list[Any]:
        """Returns the server's response. Raises OSError if the server is gone."""
        request = [what, [self._prefix + key for key in keys], list(values), seconds]
        connection, line = self._connection(), b""
        try:
            connection.settimeout(seconds + _ANSWERING)
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = self._of_thread.lines.readline()
        finally:
            if not line:
                del self._of_thread.connection  # so that a late response isn't used for the next request
        if not line:
            raise ConnectionError("the rank that serves the store has gone")
        found: list[Any] = json.loads(line)
        return found

    def _connection(self) -> socket.socket:
        """Returns this thread's connection; each thread has its own, because a connection waits for one response."""
        if not hasattr(self._of_thread, "connection"):
            made = socket.create_connection(self._address, timeout=1.0)
            if made.getsockname() == made.getpeername():
                # If nobody listens, TCP may give this socket the same port and connect it to itself. The connection is
                # reset (SO_LINGER), so that the server can take the port at once.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                made.close()
                raise ConnectionRefusedError("nobody serves the store yet")
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._of_thread.connection, self._of_thread.lines = made, made.makefile("rb")
        found: socket.socket = self._of_thread.connection
        return found


def _hex(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else value).hex()
