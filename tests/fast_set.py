"""A test below a folder named `unit` starts no process and opens no socket, so `make test-fast` takes seconds.

The interpreter's audit hooks (PEP 578) show what a test does, whichever library does it. The pair of connected sockets
by which an asyncio loop wakes itself is bound to nothing, and isn't meant.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

FOLDER = "unit"
FORBIDDEN = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.sendto",
        "subprocess.Popen",
    }
)
_recorded: list[str] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event in FORBIDDEN:
        _recorded.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_record)


def is_fast(item: pytest.Item) -> bool:
    """Returns whether a test is in the fast set, by its folder."""
    return FOLDER in item.path.relative_to(item.config.rootpath).parts[:-1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """Forgets what earlier tests did, so that this test's fixtures count as its own."""
    _recorded.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fails a test of the fast set that has used the system."""
    yield
    if _recorded and is_fast(item):
        pytest.fail(
            f"A test below {FOLDER}/ starts no process and opens no socket; this one did: {', '.join(_recorded)}. "
            "Move it to tests/processes.",
            pytrace=False,
        )
