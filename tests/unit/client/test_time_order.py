"""Logs are merged by the times of their lines, in bounded memory, and silent logs delay the others only briefly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport
from trainmaster.client.asynchronous import TaskMerger
from trainmaster.client.blocking import Blocking, ThreadMerger, iterate
from trainmaster.client.time_order import MIN_AHEAD, Ended, Lines, Merger, WorkerLine, merged

BOTH = pytest.mark.parametrize("merging", [ThreadMerger, TaskMerger])


async def stream(worker: int, *times: float) -> Lines:
    for at in times:
        yield WorkerLine(at, worker, f"{worker} at {at}")


async def never(worker: int, *times: float) -> Lines:
    async for line in stream(worker, *times):
        yield line
    await asyncio.Event().wait()


async def times(merger: Merger[str]) -> list[float]:
    found = []
    while merger.sources:
        item = await merger.next()
        assert item is not None
        if isinstance(item[1], WorkerLine):
            found.append(item[1].time)
    return found


def merged_lines(*streams: Lines) -> list[WorkerLine]:
    return list(iterate(merged(streams, Blocking(FakeTransport()).together)))


def test_logs_that_are_there_are_merged_by_time_and_equal_times_stay_in_the_workers_order() -> None:
    found = merged_lines(stream(0, 1, 3, 3), stream(1, 2, 3, 4), stream(2))
    assert [(line.time, line.worker) for line in found] == [(1, 0), (2, 1), (3, 0), (3, 0), (3, 1), (4, 1)]


async def test_of_logs_that_are_there_one_line_is_held_of_each() -> None:
    read: list[float] = []

    async def counted(*times: float) -> Lines:
        for at in times:
            read.append(at)
            yield WorkerLine(at, 0, "")

    async def together(parts: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        return list(await asyncio.gather(*parts))

    found = merged([counted(1, 2, 3), counted(10, 11, 12)], together)
    await anext(found)
    assert sorted(read) == [1, 10]
    await found.aclose()


def test_an_error_of_a_log_that_is_there_is_raised() -> None:
    async def breaks() -> Lines:
        raise OSError("broke")
        yield WorkerLine(1, 0, "one")

    with pytest.raises(OSError, match="broke"):
        merged_lines(breaks(), stream(1, 2))


@BOTH
async def test_followed_lines_come_in_the_order_of_time_also_where_little_is_read_ahead(merging: Any) -> None:
    merger: Merger[str] = merging(ahead=0)
    merger.add("a", stream(0, *range(0, 200, 2)))
    merger.add("b", stream(1, *range(1, 200, 2)))
    merger.add("c", stream(2))
    assert await times(merger) == list(range(200))
    await merger.close()


@BOTH
async def test_a_slow_consumer_is_waited_for_in_bounded_memory(merging: Any) -> None:
    read = 0

    async def long() -> Lines:
        nonlocal read
        for at in range(100):
            read += 1
            yield WorkerLine(at, 0, "x" * (MIN_AHEAD // 10))

    merger: Merger[str] = merging(ahead=0, hold_seconds=0.0)
    merger.add("a", long())
    await asyncio.sleep(0.2)
    assert read < 15, "the reader stops when this much is waiting"
    assert await times(merger) == list(range(100))


async def test_a_line_is_held_back_until_all_logs_have_shown_a_later_one() -> None:
    ready = asyncio.Event()

    async def late() -> Lines:
        await ready.wait()
        yield WorkerLine(1, 1, "first")

    merger: Merger[str] = TaskMerger(hold_seconds=60)
    merger.add("a", stream(0, 2))
    merger.add("b", late())
    assert await merger.next(time.monotonic() + 0.01) is None
    ready.set()
    assert [await merger.next() for _ in range(4)] == [
        ("b", WorkerLine(1, 1, "first")),
        ("b", Ended()),
        ("a", WorkerLine(2, 0, "0 at 2")),
        ("a", Ended()),
    ]


async def test_a_silent_log_holds_the_others_back_for_a_moment_only() -> None:
    merger: Merger[str] = TaskMerger()
    merger.add("silent", never(0))
    merger.add("talks", never(1, *range(1000)))
    began = time.monotonic()
    for expected in range(1000):
        found = await merger.next()
        assert found is not None and isinstance(found[1], WorkerLine) and found[1].time == expected
    assert time.monotonic() - began < 10
    assert await merger.next(time.monotonic()) is None
    await merger.close()


@BOTH
@pytest.mark.parametrize("logs", [1, 300])
async def test_every_line_of_every_log_comes_once(merging: Any, logs: int) -> None:
    merger: Merger[str] = merging(hold_seconds=5.0)
    for worker in range(logs):
        merger.add(str(worker), stream(worker, 1, 2, 3))
    assert await times(merger) == sorted([1, 2, 3] * logs)


@BOTH
async def test_what_ended_the_reading_is_passed_on_behind_the_lines(merging: Any) -> None:
    async def breaks() -> AsyncGenerator[WorkerLine, None]:
        yield WorkerLine(1, 0, "one")
        raise OSError("broke")

    merger: Merger[str] = merging()
    merger.add("a", breaks())
    assert await merger.next() == ("a", WorkerLine(1, 0, "one"))
    ended = await merger.next()
    assert ended is not None and isinstance(ended[1], Ended) and str(ended[1].error) == "broke"
    assert not merger.sources
