"""Names to addresses: the hosts file first, then DNS in a thread, because getaddrinfo(3) can block for many seconds."""

from __future__ import annotations

import socket
from collections.abc import Callable

from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network.events import Resolved

MAX_HOSTS_BYTES = 1_048_576


def resolve(loop: Loop, number: int, name: str, hosts_file: str, put: Callable[[Resolved], None]) -> None:
    """Put the address of a try's host into the queue: at once for an address or a name in the hosts file."""
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
    """Returns the address of a name in a file like /etc/hosts (hosts(5)), or ""."""
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
