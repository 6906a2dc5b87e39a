"""Tokens for /metrics are reviewed rarely, so invented ones cost the API server little and lock nobody out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.unit.controller.virtual_time import in_virtual_time
from trainmaster_operator.controller.apiserver.cluster import TOKEN_REVIEWS, Cluster, Resource
from trainmaster_operator.controller.apiserver.errors import Unreachable
from trainmaster_operator.controller.observability.endpoints import (
    ADMITTED_SECONDS,
    MAX_REFUSED,
    MAX_WAITING,
    REFUSED_SECONDS,
    UNKNOWN_SECONDS,
    NotAdmitted,
    Scrapers,
)


class Reviews:
    """Stands for the API server: it knows `good`, and counts the tokens that it must review."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seconds = 0.0
        self.broken = False

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"status": await self._review(resource, body["spec"])}

    async def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(self.seconds)
        if self.broken:
            raise Unreachable("tokenreviews", "no answer")
        if resource != TOKEN_REVIEWS:
            return {"allowed": spec["user"] == "good"}
        self.asked.append(spec["token"])
        return {"authenticated": spec["token"] in ("good", "known"), "user": {"username": spec["token"]}}


def scrapers(reviews: Reviews) -> Scrapers:
    return Scrapers(cast(Cluster, reviews), asyncio.get_running_loop().time)


async def status_of(asked: Scrapers, token: str, address: str = "10.0.0.1") -> int:
    """Returns the status of the answer."""
    try:
        await asked.require(f"Bearer {token}", address)
    except NotAdmitted as error:
        return error.status
    return 200


HEADERS = ["", "Basic Z29vZA==", "Bearer", "Bearer  ", "Bearer gööd", "Bearer " + "a" * 20_000]


@pytest.mark.parametrize("header", HEADERS, ids=len)
async def test_what_is_no_token_is_not_reviewed(header: str) -> None:
    reviews = Reviews()
    with pytest.raises(NotAdmitted) as caught:
        await scrapers(reviews).require(header, "10.0.0.1")
    assert caught.value.status == 401 and reviews.asked == []


@in_virtual_time
async def test_an_answer_is_remembered_for_a_moment() -> None:
    reviews = Reviews()
    asked = scrapers(reviews)
    for _ in range(3):
        assert [await status_of(asked, token) for token in ("good", "known", "invented")] == [200, 403, 401]
    assert reviews.asked == ["good", "known", "invented"]
    await asyncio.sleep(REFUSED_SECONDS)
    assert [await status_of(asked, token) for token in ("good", "invented")] == [200, 401]
    assert reviews.asked[3:] == ["invented"]
    await asyncio.sleep(ADMITTED_SECONDS)
    assert await status_of(asked, "good") == 200 and reviews.asked[4:] == ["good"]


@in_virtual_time
async def test_invented_tokens_are_reviewed_one_after_the_other_and_the_known_ones_do_not_wait() -> None:
    reviews = Reviews()
    reviews.seconds = 0.01
    asked = scrapers(reviews)
    assert await status_of(asked, "good") == 200
    await asyncio.sleep(ADMITTED_SECONDS)
    loop = asyncio.get_running_loop()
    began = loop.time()
    flood = [asyncio.create_task(status_of(asked, f"invented-{n}", f"10.0.1.{n % 100}")) for n in range(1_000)]
    await asyncio.sleep(0)
    assert await status_of(asked, "good") == 200 and loop.time() - began < 5 * reviews.seconds
    answers = [await each for each in flood]
    assert answers.count(401) == MAX_WAITING and answers.count(429) == 1_000 - MAX_WAITING
    assert loop.time() - began >= MAX_WAITING * UNKNOWN_SECONDS


@in_virtual_time
async def test_an_address_that_floods_keeps_no_other_out() -> None:
    asked = scrapers(Reviews())
    flood = [asyncio.create_task(status_of(asked, f"invented-{n}", "10.0.1.1")) for n in range(100)]
    await asyncio.sleep(0)
    assert await status_of(asked, "good", "10.0.0.2") == 200
    assert sorted(await asyncio.gather(*flood)) == [401] + 99 * [429]


@in_virtual_time
async def test_a_token_is_reviewed_once_for_all_who_show_it_at_the_time() -> None:
    reviews = Reviews()
    reviews.seconds = 0.1
    asked = scrapers(reviews)
    assert set(await asyncio.gather(*(status_of(asked, "good") for _ in range(50)))) == {200}
    assert reviews.asked == ["good"]


@in_virtual_time
async def test_refusals_push_no_admitted_token_out_of_memory() -> None:
    reviews = Reviews()
    asked = scrapers(reviews)
    assert await status_of(asked, "good") == 200
    for number in range(MAX_REFUSED // 4):
        await status_of(asked, f"invented-{number}")
    assert await status_of(asked, "good") == 200 and reviews.asked.count("good") == 1


@in_virtual_time
async def test_without_an_answer_nothing_is_shown_and_nothing_is_remembered() -> None:
    reviews = Reviews()
    asked = scrapers(reviews)
    reviews.broken = True
    assert await status_of(asked, "good") == 503
    reviews.broken, reviews.seconds = False, 100.0
    assert await status_of(asked, "good") == 503
    reviews.seconds = 0.0
    assert await status_of(asked, "good") == 200
