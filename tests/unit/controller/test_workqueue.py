"""`workqueue` keeps the promises of client-go's queue (k8s.io/client-go/util/workqueue)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.virtual_time import in_virtual_time
from trainmaster_operator.controller.workqueue import WorkQueue


def make() -> WorkQueue[str]:
    return WorkQueue(jitter=lambda: 0.0)


async def take(queue: WorkQueue[str]) -> str | None:
    """Returns the next key, or None if there is none now."""
    try:
        key, _ = await asyncio.wait_for(anext(queue), 0.01)
    except TimeoutError:
        return None
    return key


async def test_a_key_added_many_times_is_handed_out_once() -> None:
    queue = make()
    for _ in range(5):
        queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert await take(queue) is None


@in_virtual_time
async def test_a_key_that_fails_for_a_day_waits_for_the_longest_time() -> None:
    """It is tried once a minute; a double holds only 1,024 doublings."""
    queue = make()
    for _ in range(1_440):
        wait = queue.add_rate_limited("a")
        await asyncio.sleep(wait)
        assert await take(queue) == "a"
        queue.done("a")
    assert wait == 60.0


async def test_a_key_added_while_it_is_worked_on_comes_again_only_after_done() -> None:
    queue = make()
    queue.add("a")
    await take(queue)
    queue.add("a")
    assert await take(queue) is None
    queue.done("a")
    assert await take(queue) == "a"


@in_virtual_time
async def test_a_delayed_add_keeps_the_earliest_time() -> None:
    queue = make()
    queue.add_after("a", 5)
    queue.add_after("a", 2)
    queue.add_after("a", 9)
    await asyncio.sleep(1.9)
    assert await take(queue) is None
    await asyncio.sleep(0.1)
    assert await take(queue) == "a"
    queue.done("a")
    await asyncio.sleep(100)
    assert await take(queue) is None


@in_virtual_time
async def test_an_immediate_add_replaces_a_delayed_one() -> None:
    queue = make()
    queue.add_after("a", 5)
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    await asyncio.sleep(6)
    assert await take(queue) is None


async def test_a_delayed_add_wakes_a_worker_that_already_waits() -> None:
    queue: WorkQueue[str] = WorkQueue()
    taken = asyncio.create_task(queue.__anext__())
    await asyncio.sleep(0)
    queue.add_after("a", 0.01)
    assert (await asyncio.wait_for(taken, 1))[0] == "a"


async def test_the_backoff_doubles_up_to_its_limit_and_forget_resets_it() -> None:
    queue = make()
    waits = [queue.add_rate_limited("a") for _ in range(15)]
    assert waits[:3] == [0.01, 0.02, 0.04] and waits[-3:] == [40.96, 60.0, 60.0]
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.01
    assert queue.add_rate_limited("b", at_least=7) == 7, "a server's Retry-After is never undercut"


async def test_a_closed_queue_gives_out_what_is_ready_and_then_ends_every_worker() -> None:
    queue = make()
    queue.add("a")
    queue.close()
    queue.add("b")
    assert (await anext(queue))[0] == "a"
    with pytest.raises(StopAsyncIteration):
        await anext(queue)


Step = tuple[str, str, int]
keys = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys, st.just(0)),
        st.tuples(st.just("after"), keys, st.integers(1, 5)),
        st.tuples(st.just("get"), keys, st.just(0)),
        st.tuples(st.just("done"), keys, st.just(0)),
        st.tuples(st.just("wait"), keys, st.integers(1, 5)),
    ),
    max_size=60,
)


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(steps)
def test_no_key_is_lost_and_none_is_worked_on_twice_at_a_time(history: list[Step]) -> None:
    working: set[str] = set()
    # The keys requested and not begun since, each with its earliest due time.
    asked: dict[str, float] = {}

    @in_virtual_time
    async def run() -> None:
        queue, clock = make(), asyncio.get_running_loop().time
        for kind, key, seconds in history:
            if kind == "add":
                queue.add(key)
                asked[key] = clock()
            elif kind == "after":
                queue.add_after(key, seconds)
                asked[key] = min(asked.get(key, float("inf")), clock() + seconds)
            elif kind == "wait":
                await asyncio.sleep(seconds)
            elif kind == "done" and key in working:
                working.discard(key)
                queue.done(key)
            elif kind == "get":
                due = {k for k, at in asked.items() if at <= clock() and k not in working}
                if due:
                    taken, _ = await asyncio.wait_for(anext(queue), 1)
                    assert taken in due
                    assert taken not in working
                    working.add(taken)
                    del asked[taken]
        for key in working:
            queue.done(key)
        await asyncio.sleep(100)
        for _ in range(len(asked)):
            key, _ = await asyncio.wait_for(anext(queue), 1)
            del asked[key]
        assert not asked, "every key that was asked for is worked on"
        assert len(queue) == 0

    run()
