"""A real group connects the present ranks by gloo, and on a GPU also by NCCL. Any thread can end it.

Ending the group must wake threads that wait in a collective. NCCL's abort wakes them, but gloo's doesn't (torch 2.13).
So the group's gloo connections are shut down, which makes running collectives fail here and at the peers. The
connections are recognised by gloo's listening ports, which the ranks exchange before they connect.

Gloo forgets a message that is partly sent or received when its connection breaks (torch 2.13, `signalException` in
tcp/pair.cc). The collective then fails only at its timeout, so we don't rely on gloo alone. When a group's connections
are closed, nothing accesses a tensor any more, and `Group.give_up` ends the remaining collectives. After that, a
reference to the real group is kept, because its destructor would wait for the forgotten collective.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

#: How many gloo devices to create at most, until the address of one of them is known.
_TRIES = 3
#: Seconds that gloo may need to close connections after their shutdown, and to fail the collectives on them.
_CLOSING, _FAILING = 0.25, 0.02


class Listener:
    """A listener is a gloo device, which listens as soon as it is created, before there is a group."""

    def __init__(self) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        gloo = dist.ProcessGroupGloo
        for _ in range(_TRIES):
            before = set(_listening())
            self.device: Any = gloo.create_device(interface=interface) if interface else gloo.create_default_device()
            new = set(_listening()) - before
            #: The listening address. It is "" if other sockets began to listen at the same time, so that it is unknown.
            self.address = new.pop() if len(new) == 1 else ""
            if self.address:
                break


class Real:
    """A real group contains a backend for each device type."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        listener: Listener,
        addresses: Sequence[str],
        backend: str = "",
        device: torch.device | None = None,
        timeout: timedelta,
        waits: timedelta,
    ) -> None:
        """Connect to all ranks of the group within `timeout`; all ranks must call this. Raises RuntimeError on failure.

        `waits` is the timeout of a collective. `addresses` are all ranks' `Listener.address`. `backend` handles an
        accelerator's tensors. It connects now if `device` is given, and otherwise in its first collective.
        """
        self.rank, self.size = rank, size
        self._addresses, self._own = frozenset(addresses), listener.address
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._devices = timeout, [listener.device]
        options._threads = 2
        gloo: Any = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
        gloo._set_default_timeout(waits)
        self._backends: dict[str, Any] = {"cpu": gloo}
        self._works = list[Any]()  # gloo's collectives that may still be running
        self._are_all = True  # whether `_works` lists all collectives
        self._closing, self._closed_by = set[str](), 0.0
        if backend:
            self._store = torchs_store(store, rank, listener)
            self._backends["cuda"] = _nccl(self._store, rank, size, device, waits)

    def of(self, device: torch.device) -> Any:
        """Returns the backend for tensors on `device`."""
        return self._backends[device.type]

    def end(self) -> None:
        """Make all running collectives fail, except those that gloo forgets. Any thread may call it repeatedly."""
        for kind, backend in list(self._backends.items()):
            if kind != "cpu":
                with suppress(RuntimeError):
                    backend.abort()
        for name, connection in _connections(self._own, self._addresses):
            self._closing.add(name)
            with suppress(OSError):
                # Only for reading, because gloo forgets a message that fails while it is sent.
                connection.shutdown(socket.SHUT_RD)

    def begun(self, work: Any, *, has_end: bool) -> None:
        """Record that gloo runs a collective; `has_end` is true if it can be observed when the collective ends."""
        if has_end:
            self._works = [*self._under_way(), work]
        else:
            self._are_all = False

    def close(self) -> None:
        """End the group, and wait until gloo no longer accesses tensors.

        That is so when all collectives have failed or all connections are closed.
        """
        self.end()
        self._closed_by = self._closed_by or time.monotonic() + _CLOSING
        # gloo leaves a connection open and unread if it receives a message for a collective that has failed.
        while self._closing & {name for name, _ in _links()} and time.monotonic() < self._closed_by:
            if self._are_all and not self._under_way():
                break
            time.sleep(0.001)

    def let_go(self) -> None:
        """Close the group; the caller drops its reference."""
        self.close()
        until = time.monotonic() + _FAILING
        while self._under_way() and time.monotonic() < until:
            time.sleep(0.001)
        _kept[:] = [real for real in (*_kept, self) if real._under_way()]

    def _under_way(self) -> list[Any]:
        return [work for work in self._works if not work.is_completed()]


_kept = list[Real]()


def torchs_store(store: Store, rank: int, listener: Listener) -> Store:
    """Returns a store of torch's own, served by the first rank.

    NCCL needs such a store, because its threads use the store even after Python has ended.
    """
    # With this variable, torch would assume that any listener on the port is the store (torch 2.13, TCPStore.cpp).
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    if rank == 0:
        host = listener.address.partition(" ")[0] or socket.gethostbyname(socket.gethostname())
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        store.set("torchs", f"{host} {served.port}")
        return served
    host, _, port = store.get("torchs").decode().partition(" ")
    return TCPStore(host, int(port), is_master=False)


def _nccl(store: Store, rank: int, size: int, device: torch.device | None, timeout: timedelta) -> Any:
    # Without these settings, NCCL's watchdog would react to an error even if the group was aborted (torch 2.11 to
    # 2.13): for a minute it would hold a lock that collectives need, and then end the process. The agent detects hangs
    # instead.
    os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "25"}
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    if device is not None:
        torch.cuda.set_device(device)  # for this thread
        options.config.blocking = False  # so that an abort can end NCCL's calls
    nccl: Any = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
    if device is not None:
        nccl.eager_connect_single_device(device)
    return nccl


def _links() -> Iterator[tuple[str, int]]:
    """Yields the names and descriptors of this process's open files."""
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # it was closed meanwhile
            yield str(link.readlink()), int(link.name)


def _sockets() -> Iterator[tuple[str, socket.socket]]:
    """Yields the names and duplicates of this process's sockets. A duplicate is closed when the next is requested."""
    for name, number in _links():
        if not name.startswith("socket:"):
            continue
        try:
            descriptor = os.dup(number)
        except OSError:
            continue  # it was closed meanwhile
        try:
            duplicate = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)  # because another file uses this number now
            continue
        with duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM:
                yield name, duplicate


def _listening() -> Iterator[str]:
    for _, each in _sockets():
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield _text(each.getsockname())


def _connections(own: str, addresses: frozenset[str]) -> Iterator[tuple[str, socket.socket]]:
    """Yields the connections from peers to this rank's address, and from this rank to the peers' addresses."""
    for name, each in _sockets():
        try:
            ours, theirs = _text(each.getsockname()), _text(each.getpeername())
        except OSError:
            continue  # the socket listens, or is no longer connected
        if ours == own or theirs in addresses:
            yield name, each


def _text(address: Any) -> str:
    return f"{address[0]} {address[1]}"
