"""A real group can be ended from any thread, affects nothing else, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import run_ranks

pytestmark = pytest.mark.torch

_SIZE = 1_000_000


def _group(store: Any, rank: int, size: int, name: str) -> Any:
    from torch.distributed import PrefixStore

    from trainloop.continuing.real import Listener, Real

    own = PrefixStore(name, store)
    listener = Listener()
    own.set(f"address-{rank}", listener.address)
    addresses = [own.get(f"address-{each}").decode() for each in range(size)]
    limit = timedelta(seconds=60)
    return Real(own, rank, size, listener=listener, addresses=addresses, timeout=limit, waits=limit)


def _store() -> Any:
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    return dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=60)), rank, size


def _wakes() -> float:
    """Rank 1 never enters the collective; another thread of rank 0 ends the group."""
    import torch
    import torch.distributed as dist

    store, rank, size = _store()
    real = _group(store, rank, size, "wakes")
    waited = 0.0
    if rank == 0:
        work = real.of(torch.device("cpu")).allreduce([torch.ones(_SIZE)], dist.AllreduceOptions())
        threading.Timer(0.2, real.end).start()
        begun = time.monotonic()
        with pytest.raises(RuntimeError):
            work.wait()
        waited = time.monotonic() - begun
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"])
    return waited


def test_a_thread_that_waits_in_gloo_is_woken_at_once() -> None:
    assert run_ranks(2, _wakes)[0] < 5


def _late() -> list[bool]:
    """Rank 1 sends after rank 0 has ended the group; only then is the tensor's memory used for something else."""
    import torch
    import torch.distributed as dist

    store, rank, size = _store()
    same = list[bool]()
    for turn in range(5):
        real = _group(store, rank, size, f"late-{turn}")
        gloo = real.of(torch.device("cpu"))
        tensor = torch.full((_SIZE,), float(rank))
        if rank == 0:
            work = gloo.allreduce([tensor], dist.AllreduceOptions())
            time.sleep(0.05)
            real.end()
            with pytest.raises(RuntimeError):
                work.wait()
            del work, gloo, real
            tensor.fill_(7.0)
            store.set(f"ended-{turn}", "")
            store.wait([f"sent-{turn}"])
            time.sleep(0.1)
            same.append(bool((tensor == 7.0).all()))
        else:
            store.wait([f"ended-{turn}"])
            with pytest.raises(RuntimeError):
                gloo.allreduce([tensor], dist.AllreduceOptions()).wait()
            store.set(f"sent-{turn}", "")
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"])
    return same


def test_nothing_writes_into_the_tensors_of_a_group_that_has_ended() -> None:
    assert run_ranks(2, _late)[0] == [True] * 5


def _half_sent() -> list[bool]:
    """Rank 1 stops while rank 0 sends it a large message. Returns whether rank 0 stops waiting once it has given up and
    dropped the group.
    """
    import torch
    import torch.distributed as dist

    from trainloop.continuing.group import Group

    store, rank, size = _store()
    real = _group(store, rank, size, "half-sent")
    group = Group(rank, range(size), lambda error: True, lambda why: None, lambda: True)
    group.use(real, range(size))
    store.set(f"pid-{rank}", str(os.getpid()))
    work = group.broadcast([torch.ones(100 * _SIZE)], dist.BroadcastOptions())
    future = work.get_future()
    if rank == 1:
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGSTOP)
        real.close()
        group.give_up(RuntimeError("closed"), group.uses)
        future.wait()
        real.let_go()
        return []
    peer = int(store.get("pid-1"))
    while Path(f"/proc/{peer}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    time.sleep(0.5)
    assert not work.is_completed(), "it was sent before the peer stopped: the message is to be larger"
    real.close()
    group.give_up(RuntimeError("closed"), group.uses)
    given_up = _ends(future.wait)
    group.leave()
    real.let_go()
    del real
    os.kill(peer, signal.SIGCONT)
    return [given_up, not work.is_completed()]


def _ends(wait: Callable[[], object]) -> bool:
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_nobody_waits_for_a_message_that_is_half_sent_and_its_group_is_kept() -> None:
    assert run_ranks(2, _half_sent)[0] == [True, True]


def _beside() -> bool:
    """Ends groups while this process also has a connection to a server at another address, on the port number that gloo
    uses.
    """
    import torch
    import torch.distributed as dist

    store, rank, size = _store()
    real = _group(store, rank, size, "beside")
    # One rank's side of the group can be connected before the other's.
    store.set(f"connected-{rank}", "")
    store.wait(["connected-0", "connected-1"])
    host, port = real._own.split()
    elsewhere = "127.0.0.5" if host == "127.0.0.1" else "127.0.0.1"
    with (
        socket.create_server((elsewhere, int(port))) as server,
        socket.create_connection((elsewhere, int(port))) as one,
    ):
        other, _ = server.accept()
        real.end()
        one.sendall(b"still there")
        received = other.recv(64)
        other.close()
    with pytest.raises(RuntimeError):
        real.of(torch.device("cpu")).allreduce([torch.ones(_SIZE)], dist.AllreduceOptions()).wait()
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"])
    return received == b"still there"


def test_connections_of_others_in_the_process_stay() -> None:
    assert run_ranks(2, _beside) == [True, True]


def _often() -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    store, rank, size = _store()

    def there() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))  # noqa: PTH208

    begun = (0, 0)
    for turn in range(60):
        real = _group(store, rank, size, f"often-{turn}")
        real.of(torch.device("cpu")).allreduce([torch.ones(10)], dist.AllreduceOptions()).wait()
        real.end()
        del real
        begun = there() if turn == 10 else begun
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"])
    after = there()
    store.set(f"left-{rank}", "")
    if rank == 0:  # which serves the store
        store.wait(["left-1"])
    return after[0] - begun[0], after[1] - begun[1]


def test_groups_leave_no_threads_and_no_files() -> None:
    assert all(files <= 0 and threads <= 0 for files, threads in run_ranks(2, _often))
