"""The store in which the ranks of a continued attempt meet (`continuing/store`)."""

from __future__ import annotations

import gc
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from tests.trainer.ranks import free_port
from trainloop.continuing.real import Listener, torchs_store
from trainloop.continuing.store import Client, Server


@pytest.fixture
def store() -> Client:
    port = free_port()
    return Client("127.0.0.1", port, 2, Server(port))


def test_it_does_what_torchs_stores_do(store: Client) -> None:
    torchs = dist.HashStore()
    for each in (store, torchs):
        each.set("text", "é")
        each.set("bytes", b"\x00\n\xff")
        assert each.get("text") == "é".encode() and each.get("bytes") == b"\x00\n\xff"
        assert (each.add("number", 5), each.add("number", -7), each.get("number")) == (5, -2, b"-2")
        assert each.check(["text", "number"]) and not each.check(["text", "other"])
        each.multi_set(["a", "b"], ["1", "2"])
        assert each.multi_get(["bytes", "a", "b"]) == [b"\x00\n\xff", b"1", b"2"]
        assert each.delete_key("a") and not each.delete_key("a") and not each.check(["a"])


def test_torch_uses_it_below_a_prefix_of_its_own_and_a_groups_ranks_meet_in_it(store: Client) -> None:
    sums = list[float]()

    def rank(number: int) -> None:
        own = Client(*store._address, 2)
        group = dist.ProcessGroupGloo(PrefixStore("of-a-group", own), number, 2, timedelta(seconds=10))
        tensor = torch.tensor([float(number + 1)])
        group.allreduce([tensor]).wait()
        sums.append(tensor.item())

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sums == [3.0, 3.0]


def test_nccls_threads_have_a_store_of_torchs(store: Client) -> None:
    found = list[dist.Store]()

    def rank(number: int) -> None:
        own = Client(*store._address, 2)
        found.append(torchs_store(PrefixStore("of-a-group", own), number, Listener()))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3 and all(isinstance(each, dist.TCPStore) for each in found)
    assert [each.add("number", 1) for each in found] == [1, 2, 3]


def test_who_waits_gets_what_is_set_later_and_hinders_nobody(store: Client) -> None:
    found = list[bytes]()
    waiting = threading.Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    time.sleep(0.1)
    assert not found
    store.set("late", "here")
    waiting.join(5)
    assert found == [b"here"]
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"never weren't set within 0\.2 s"):
        store.wait(["late", "never"], timedelta(seconds=0.2))
    assert 0.2 <= time.monotonic() - began < 5


def test_attempts_have_nothing_of_each_other(store: Client) -> None:
    later = Client(*store._address, 3)
    store.set("here", "1")
    assert not later.check(["here"])


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b'["set"]\n', b'["add", ["2/n"], ["x"], 0]\n'],
)
def test_what_is_no_request_ends_its_own_connection_alone(store: Client, sent: bytes) -> None:
    with socket.create_connection(store._address, 5) as foreign:
        foreign.sendall(sent)
        assert foreign.recv(10) == b""
    assert store.add("n", 1) == 1


def test_a_socket_that_is_connected_with_itself_is_no_store_and_keeps_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        made = socket.socket()
        made.bind(address)
        made.connect(address)
        return made

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConnectionRefusedError, match="nobody serves"):
        Client("127.0.0.1", port, 2)
    Server(port).close()


def test_who_waits_learns_that_the_server_has_gone_and_its_port_is_free() -> None:
    port = free_port()
    serving = Client("127.0.0.1", port, 2, Server(port))
    with pytest.raises(OSError, match="in use"):
        Server(port)
    other, said = Client("127.0.0.1", port, 2), list[Exception]()

    def wait() -> None:
        try:
            other.wait(["never"], timedelta(seconds=20))
        except OSError as error:
            said.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    del serving
    gc.collect()
    waiting.join(5)
    assert [str(error) for error in said] == ["the rank that serves the store has gone"]
    Server(port).close()
