"""Logs are merged by the time of their lines, those that are followed without waiting for the silent ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from trainmaster.client import asynchronous, blocking
from trainmaster.client.arrivals import Ended, Readers
from trainmaster.client.asynchronous import TaskReaders
from trainmaster.client.blocking import ThreadReaders
from trainmaster.client.merging import Merger, WorkerLine


async def stream(worker: int, *times: float) -> AsyncGenerator[WorkerLine, None]:
    for at in times:
        yield WorkerLine(at, worker, f"{worker} at {at}")


async def never(worker: int, *times: float) -> AsyncGenerator[WorkerLine, None]:
    async for line in stream(worker, *times):
        yield line
    await asyncio.Event().wait()


async def times(merger: Merger) -> list[float]:
    found = []
    while merger.sources:
        item = await merger.next()
        if isinstance(item, WorkerLine):
            found.append(item.time)
    return found


@pytest.mark.parametrize("readers", [ThreadReaders, TaskReaders])
@pytest.mark.parametrize("follow", [False, True])
async def test_lines_come_in_the_order_of_time_also_where_little_is_read_ahead(
    readers: Any, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (asynchronous, blocking):
        monkeypatch.setattr(module, "MAX_AHEAD", 2)
    merger = Merger(readers(), follow=follow)
    merger.add("a", stream(0, *range(0, 200, 2)))
    merger.add("b", stream(1, *range(1, 200, 2)))
    merger.add("c", stream(2))
    assert await times(merger) == list(range(200))
    await merger.close()


async def test_a_silent_log_holds_the_others_back_for_a_moment_only() -> None:
    readers: Readers[WorkerLine] = TaskReaders()
    merger = Merger(readers, follow=True)
    merger.add("silent", never(0))
    merger.add("talks", never(1, *range(1000)))
    began = time.monotonic()
    for expected in range(1000):
        line = await merger.next()
        assert isinstance(line, WorkerLine) and line.time == expected
    assert time.monotonic() - began < 10
    assert await merger.next(time.monotonic()) is None
    await merger.close()


@pytest.mark.parametrize("readers", [ThreadReaders, TaskReaders])
async def test_what_ended_the_reading_is_passed_on_behind_the_lines(readers: Any) -> None:
    async def breaks() -> AsyncGenerator[WorkerLine, None]:
        yield WorkerLine(1, 0, "one")
        raise OSError("broke")

    merger = Merger(readers(), follow=False)
    merger.add("a", breaks())
    assert await merger.next() == WorkerLine(1, 0, "one")
    ended = await merger.next()
    assert isinstance(ended, Ended) and str(ended.error) == "broke"
    assert not merger.sources
