"""A plug-in of pytest gives the tests of a given cluster their turns, in all processes that have its kubeconfig.

A test with the marker `alone` changes the cluster for all namespaces: it runs while no other test does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest

GIVEN = "TRAINMASTER_TEST_KUBECONFIG"


# Outside of pytest-timeout, which counts from here: to wait for one's turn is no hang.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test of a given cluster when it is its turn, among all processes that have the kubeconfig."""
    given = os.environ.get(GIVEN)
    if not given or "shared_cluster" not in getattr(item, "fixturenames", ()):
        return (yield)
    kind = fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX
    with Path(given).open() as turn:
        # A test that waits to be alone lets no later one in.
        with Path(__file__).open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(turn, kind)
        return (yield)
