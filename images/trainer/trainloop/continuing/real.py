"""A real group is gloo's, and on a GPU NCCL's too, among the ranks that are present. Any thread can end it.

Ending has to wake a thread that waits in a collective. NCCL's abort does so. Gloo's doesn't (torch 2.13): there the
group's own connections are shut down, which fails all that is under way, here and at the peers. They are known by the
ports that gloo listens on, which the ranks exchange before they connect.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

#: How often a device is made until its address can be told.
_TRIES = 3


class Listener:
    """A gloo device listens as soon as it is made, and before there is a group."""

    def __init__(self) -> None:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        gloo = dist.ProcessGroupGloo
        for _ in range(_TRIES):
            before = set(_listening())
            self.device: Any = gloo.create_device(interface=interface) if interface else gloo.create_default_device()
            new = set(_listening()) - before
            #: Where it listens; empty where it can't be told, because others began to listen meanwhile.
            self.address = new.pop() if len(new) == 1 else ""
            if self.address:
                break


class Real:
    """Has the backends of one group by device type."""

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
        """Connect within `timeout`; every rank of the group does so. A collective `waits` so long. `addresses` are all
        ranks' `Listener.address`. `backend` is the one for an accelerator's tensors; it connects now where the `device`
        is known, and else with its first collective. Raises RuntimeError.
        """
        self.rank, self.size = rank, size
        self._addresses, self._own = frozenset(addresses), listener.address
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._devices = timeout, [listener.device]
        options._threads = 2
        gloo: Any = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
        gloo._set_default_timeout(waits)
        self._backends: dict[str, Any] = {"cpu": gloo}
        if backend:
            self._backends["cuda"] = _nccl(store, rank, size, device, waits)

    def of(self, device: torch.device) -> Any:
        """Returns the backend for tensors on `device`."""
        return self._backends[device.type]

    def end(self) -> None:
        """Fail all that is under way, and wake whoever waits for it. To be called from any thread, more than once."""
        for kind, backend in list(self._backends.items()):
            if kind != "cpu":
                with suppress(RuntimeError):
                    backend.abort()
        for connection in _connections(self._own, self._addresses):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _nccl(store: Store, rank: int, size: int, device: torch.device | None, timeout: timedelta) -> Any:
    # After an error NCCL's watchdog would wait a minute, with a lock that collectives need, and then end the process,
    # also if the group was aborted meanwhile (torch 2.11 to 2.13). An agent is there, which finds what hangs.
    os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "25"}
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    if device is not None:
        torch.cuda.set_device(device)  # of this thread
        options.config.blocking = False  # so that an abort ends it
    nccl: Any = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
    if device is not None:
        nccl.eager_connect_single_device(device)
    return nccl


def _sockets() -> Iterator[socket.socket]:
    """Yields this process's sockets, each as a duplicate that is closed when the next one is asked for."""
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(link.readlink()).startswith("socket:"):
                continue
            descriptor = os.dup(int(link.name))
        except OSError:
            continue  # it was closed meanwhile
        try:
            duplicate = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)  # another file has its number
            continue
        with duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM:
                yield duplicate


def _listening() -> Iterator[str]:
    for each in _sockets():
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield _text(each.getsockname())


def _connections(own: str, addresses: frozenset[str]) -> Iterator[socket.socket]:
    """Yields the connections that peers made to this rank's address, or this rank to theirs."""
    for each in _sockets():
        try:
            ours, theirs = _text(each.getsockname()), _text(each.getpeername())
        except OSError:
            continue  # it listens, or isn't connected any more
        if ours == own or theirs in addresses:
            yield each


def _text(address: Any) -> str:
    return f"{address[0]} {address[1]}"
