"""`history.viewers.ViewerPlaces`: neither viewers nor strangers can take the places of others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

import pytest

from trainmaster.history import viewers as limits
from trainmaster.history.viewers import MAX_OF_VIEWER, MAX_READS, MAX_STRANGERS, ViewerPlaces
from trainmaster.serving import Refused


async def test_strangers_have_few_places_and_take_none_of_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAIT_SECONDS", 0.02)
    places = ViewerPlaces()
    async with AsyncExitStack() as held:
        for _ in range(MAX_STRANGERS):
            await held.enter_async_context(places.stranger())
        for each in await asyncio.gather(*(_stranger(places) for _ in range(100)), return_exceptions=True):
            assert isinstance(each, Refused) and "unknown tokens are being checked" in str(each)
        with places.viewer(b"alice"):
            pass
    assert await _stranger(places) is None


async def _stranger(places: ViewerPlaces) -> None:
    async with places.stranger():
        pass


def test_a_viewer_has_so_many_places_and_another_always_one() -> None:
    places = ViewerPlaces()
    with ExitStack() as held:
        for number in range(MAX_READS):
            held.enter_context(places.viewer(f"viewer-{number // MAX_OF_VIEWER}".encode()))
        with pytest.raises(Refused, match="16 of your requests are being answered"), places.viewer(b"viewer-0"):
            pass
        with (
            places.viewer(b"alice"),
            pytest.raises(Refused, match="129 requests of all viewers"),
            places.viewer(b"alice"),
        ):
            pass
    with places.viewer(b"viewer-0"):
        pass


async def test_a_viewer_has_one_long_answer_at_a_time() -> None:
    places, at_once, most = ViewerPlaces(), {b"alice": 0, b"bob": 0}, {b"alice": 0, b"bob": 0}

    async def ask(viewer: bytes) -> None:
        with places.viewer(viewer):
            async with places.long(viewer):
                at_once[viewer] += 1
                most[viewer] = max(most[viewer], at_once[viewer])
                assert viewer == b"bob" or at_once[b"bob"] <= 1
                await asyncio.sleep(0)
                at_once[viewer] -= 1

    await asyncio.gather(*(ask(viewer) for _ in range(5) for viewer in (b"alice", b"bob")))
    assert most == {b"alice": 1, b"bob": 1} and not places._long


def test_answers_that_nobody_reads_are_bounded() -> None:
    places = ViewerPlaces()
    with ExitStack() as held:
        for number in range(8):
            held.enter_context(places.sending(f"slow-{number}".encode(), limits.SENDING_OF_VIEWER))
        with pytest.raises(Refused, match="You don't read the answers"), places.viewer(b"slow-1"):
            pass
        with places.viewer(b"alice"), pytest.raises(Refused, match="wait for slow readers"), places.viewer(b"alice"):
            pass
    assert not places._sending
