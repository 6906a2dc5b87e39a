"""A cluster claims its own addresses (`network.AddressPool`), whatever else listens on the machine."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainmaster_local.network import AddressPool

KUBELET_PORT = 10250
# Claims a block, prints it, and holds it until it is killed.
HOLDS = (
    "from trainmaster_local.network import AddressPool; pool = AddressPool(78); print(pool.block, flush=True); input()"
)


@contextlib.contextmanager
def listening(family: socket.AddressFamily, address: str) -> Iterator[None]:
    """Listens on every address of the machine, like a real node's kubelet."""
    with socket.socket(family) as kubelet:
        if family == socket.AF_INET6:
            kubelet.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            kubelet.bind((address, KUBELET_PORT))
            kubelet.listen()
        except OSError as error:
            # Another program's port, most likely this machine's own kubelet.
            assert error.errno == errno.EADDRINUSE
        yield


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_a_machine_whose_kubelet_listens_everywhere_has_room_for_a_cluster(
    family: socket.AddressFamily, address: str
) -> None:
    with listening(family, address), contextlib.closing(AddressPool(77)) as pool:
        assert pool.node(0) == f"127.{pool.block}.0.1"


def test_two_clusters_share_no_address() -> None:
    with contextlib.closing(AddressPool(77)) as one, contextlib.closing(AddressPool(77)) as two:
        assert one.block != two.block
        taken = [one.allocate() for _ in range(600)]
        assert len(set(taken)) == 600 and one.node(0) not in taken
        assert all(0 < int(part) < 255 for address in taken for part in address.split(".")[2:])


def test_what_a_killed_cluster_held_is_free_again() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        held = int(other.stdout.readline())
        with contextlib.closing(AddressPool(held)) as pool:
            assert pool.block != held
        other.kill()
        other.wait()
    with contextlib.closing(AddressPool(held)) as pool:
        assert pool.block == held
