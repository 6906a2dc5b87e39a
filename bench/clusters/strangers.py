"""Attacks a port of this machine without a token: `python -m bench.clusters.strangers ATTACK PORT SECONDS`.

Each of CONNECTIONS clients repeats the attack's request, and opens a new connection when the server has closed the old
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

MIB = 1_048_576
CONNECTIONS = 32
PATIENCE_SECONDS = 2.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Attack:
    """Attack contains the bytes that a connection sends, and the number of connections."""

    sent: Callable[[], bytes]
    connections: int = CONNECTIONS
    reads: bool = True


def head(request: str, *headers: str) -> bytes:
    """Returns a request's head."""
    return "\r\n".join((f"{request} HTTP/1.1", "Host: x", *headers, "", "")).encode()


def bomb() -> bytes:
    """Returns 1 MB that decompresses to 1 GiB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + block * 1_024


def with_invented_token() -> bytes:
    """Returns requests with invented tokens, about which a server must ask the API server."""
    token = f"Authorization: Bearer invented-{next(_numbers)}"
    return head("GET /api/jobs", token) + head("GET /v1/jobs?namespace=team-0", token) + head("GET /metrics", token)


BOMB = bomb()
GZIP = head("POST /healthz", "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}") + BOMB
HUGE = head("POST /v1/records", "Content-Length: 1073741824") + bytes(4 * MIB)
ATTACKS = {
    "nothing": Attack(lambda: b"", 0),
    "compressed bodies": Attack(lambda: GZIP),
    "huge bodies": Attack(lambda: HUGE),
    "huge heads": Attack(lambda: head("GET /healthz", *(f"X-{n}: {'a' * 8_000}" for n in range(100)))),
    "half requests": Attack(lambda: b"GET /heal", 400),
    "half bodies": Attack(lambda: head("POST /v1/records", "Content-Length: 100") + b"{", 400),
    "pipelined requests": Attack(lambda: head("GET /nowhere") * 500),
    "metrics, not read": Attack(lambda: head("GET /metrics") * 20, reads=False),
    "the page, not read": Attack(lambda: head("GET /page/vendor/uplot.js") * 20, 256, reads=False),
    "invented tokens": Attack(with_invented_token, 140),
}


async def stranger(attack: Attack, port: int, until: float) -> None:
    """Attacks over one connection after the other until the time `until`."""
    while time.monotonic() < until:
        writer = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(attack.sent())
                await writer.drain()
                if not attack.reads:
                    await asyncio.sleep(PATIENCE_SECONDS)
                while await reader.read(65_536):
                    pass
        except (OSError, TimeoutError):
            await asyncio.sleep(0.01)
        finally:
            if writer is not None:
                writer.transport.abort()


async def main(name: str, port: int, seconds: float) -> None:
    """Attacks for this many seconds."""
    attack, until = ATTACKS[name], time.monotonic() + seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(stranger(attack, port, until) for _ in range(attack.connections)))
            await asyncio.sleep(seconds)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
