"""Streams of lines become one by time, whoever is slow (`cli/logs/merging.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from trainmaster.cli.logs.merging import MIN_AHEAD, Window, merged
from trainmaster.client.arrivals import Ended
from trainmaster.client.merging import WorkerLine


def lines(worker: int, *times: float) -> Iterator[WorkerLine]:
    return (WorkerLine(at, worker, f"{worker} at {at}") for at in times)


def taken(window: Window[str], wait: float = 5.0) -> WorkerLine | Ended | None:
    found = window.take(time.monotonic() + wait)
    return None if found is None else found[1]


def test_logs_that_are_there_are_merged_by_time_and_equal_times_stay_in_the_workers_order() -> None:
    found = list(merged([lines(0, 1, 3, 3), lines(1, 2, 3, 4), lines(2)]))
    assert [(line.time, line.worker) for line in found] == [(1, 0), (2, 1), (3, 0), (3, 0), (3, 1), (4, 1)]


def test_of_logs_that_are_there_one_line_is_read_ahead_of_each() -> None:
    read: list[float] = []

    def counted(times: list[float]) -> Iterator[WorkerLine]:
        for at in times:
            read.append(at)
            yield WorkerLine(at, 0, "")

    found = merged([counted([1, 2, 3]), counted([10, 11, 12])])
    next(found)
    assert read == [1, 10] or read == [10, 1]


def test_a_line_is_held_back_until_all_logs_have_shown_a_later_one() -> None:
    window: Window[str] = Window(hold_seconds=60)
    for name in ("a", "b"):
        window.open(name)
    window.put("a", WorkerLine(2, 0, "second"))
    assert taken(window, 0.01) is None
    window.put("b", WorkerLine(1, 1, "first"))
    assert taken(window) == WorkerLine(1, 1, "first")
    assert taken(window, 0.01) is None, "the other log may have an older one"
    window.end("b")
    assert [taken(window), taken(window)] == [Ended(), WorkerLine(2, 0, "second")]


def test_a_line_isnt_held_back_for_long_by_a_log_that_is_silent() -> None:
    window: Window[str] = Window(hold_seconds=0.05)
    for name in ("a", "silent"):
        window.open(name)
    window.put("a", WorkerLine(2, 0, "x"))
    assert taken(window) == WorkerLine(2, 0, "x")


def test_a_slow_reader_is_waited_for_in_bounded_memory() -> None:
    window: Window[str] = Window(hold_seconds=0.0, ahead=0)
    window.open("a")
    put: list[int] = []

    def write() -> None:
        for at in range(100):
            window.put("a", WorkerLine(at, 0, "x" * (MIN_AHEAD // 10)))
            put.append(at)
        window.end("a")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(0.2)
    assert len(put) < 15, "it stops when so much is waiting"
    assert [line.time for _ in range(100) if isinstance(line := taken(window), WorkerLine)] == list(range(100))
    assert taken(window) == Ended()


@pytest.mark.parametrize("logs", [1, 300])
def test_every_line_of_every_log_comes_once(logs: int) -> None:
    window: Window[int] = Window(hold_seconds=0.0)
    for worker in range(logs):
        window.open(worker)
        for line in lines(worker, 1, 2, 3):
            window.put(worker, line)
        window.end(worker)
    found = []
    while (each := window.take(time.monotonic() + 1)) is not None:
        found.append(each[1])
    assert sum(isinstance(each, Ended) for each in found) == logs
    times = [each.time for each in found if isinstance(each, WorkerLine)]
    assert times == sorted(times) and len(times) == 3 * logs
