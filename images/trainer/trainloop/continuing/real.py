"""A real group connects the present ranks by gloo, and on a GPU also by NCCL. Any thread can end it.

Ending the group must wake threads that wait in a collective. NCCL's abort wakes them, but gloo's doesn't (torch 2.13).
So the group's own connections are shut down, which makes running collectives fail here and at the peers. The
connections are identified by gloo's listening ports, which the ranks exchange before they connect.

Gloo forgets a message that is partly sent or received when its connection breaks (torch 2.13, `signalException` in
tcp/pair.cc). The collective then doesn't fail before its timeout, so nobody relies on gloo alone. When a group's
connections are closed, nothing accesses a tensor any more, and `Group.give_up` ends the remaining collectives. The real
group is then kept, because its destructor would wait for the forgotten collective.
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

#: The maximum number of gloo devices to create until the address of one is known.
_TRIES = 3
#: Seconds that gloo may need to close connections after their shutdown, and to fail the collectives on them.
_CLOSING, _FAILING = 0.25, 0.02


class Listener:
    """A listener is a gloo device, which listens from its creation on, before there is a group."""

    def __init__(self) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        gloo = dist.ProcessGroupGloo
        for _ in range(_TRIES):
            before = set(_listening())
            self.device: Any = gloo.create_device(interface=interface) if interface else gloo.create_default_device()
            new = set(_listening()) - before
            #: The listening address, or "" if it is unknown because other sockets began to listen at the same time.
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
        """Connect to all ranks of the group, which also connect, within `timeout`; `waits` is a collective's timeout.

        `addresses` are all ranks' `Listener.address`. `backend` handles an accelerator's tensors. It connects now if
        the `device` is known, else in its first collective. Raises RuntimeError.
        """
        self.rank, self.size = rank, size
        self._addresses, self._own = frozenset(addresses), listener.address
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._devices = timeout, [listener.device]
        options._threads = 2
        gloo: Any = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
        gloo._set_default_timeout(waits)
        self._backends: dict[str, Any] = {"cpu": gloo}
        self._works = list[Any]()  # gloo's collectives, some still running
        self._are_all = True  # whether `_works` lists all of them
        self._closing, self._closed_by = set[str](), 0.0
        if backend:
            self._store = torchs_store(store, rank, listener)
            self._backends["cuda"] = _nccl(self._store, rank, size, device, waits)

    def of(self, device: torch.device) -> Any:
        """Returns the backend for tensors on `device`."""
        return self._backends[device.type]

    def end(self) -> None:
        """Fail all running collectives, except those that gloo forgets. Any thread may call it, more than once."""
        for kind, backend in list(self._backends.items()):
            if kind != "cpu":
                with suppress(RuntimeError):
                    backend.abort()
        for name, connection in _connections(self._own, self._addresses):
            self._closing.add(name)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # not writing: gloo forgets a message that fails during sending

    def begun(self, work: Any, *, has_end: bool) -> None:
        """Record that gloo runs a collective; `has_end` is true if the end can be observed."""
        if has_end:
            self._works = [*self._under_way(), work]
        else:
            self._are_all = False

    def close(self) -> None:
        """End the group, and wait until gloo no longer accesses tensors.

        Its collectives have then failed, or its connections are closed.
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
    """Returns torch's own store, served by the first rank; NCCL's threads use it even after Python has ended."""
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
    # Otherwise, after an error, NCCL's watchdog would hold a lock that collectives need for a minute and then end the
    # process, even if the group was aborted (torch 2.11 to 2.13). The agent detects hangs instead.
    os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "25"}
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    if device is not None:
        torch.cuda.set_device(device)  # for this thread
        options.config.blocking = False  # so that an abort ends calls
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
    """Yields this process's sockets by name. Each is a duplicate, which is closed when the next one is requested."""
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
    """Yields the connections from peers to this rank's address, and from this rank to theirs."""
    for name, each in _sockets():
        try:
            ours, theirs = _text(each.getsockname()), _text(each.getpeername())
        except OSError:
            continue  # the socket listens, or is no longer connected
        if ours == own or theirs in addresses:
            yield name, each


def _text(address: Any) -> str:
    return f"{address[0]} {address[1]}"
