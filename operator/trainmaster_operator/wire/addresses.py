"""Names whose connections count together, where a port bounds them."""

from __future__ import annotations

import socket


def group_of(address: str) -> str:
    """Names the addresses that count as one: of IPv6 the /64 that one machine usually has to itself."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed.hex() if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8].hex()
