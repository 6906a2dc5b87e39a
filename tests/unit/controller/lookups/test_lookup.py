"""`lookups.lookup`: which questions are asked, when again, and what is recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, Cluster
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookup, Lookups

KEY = JobKey(b.NAMESPACE, "bert")


class World:
    """A lookup whose questions and answers the test sets."""

    def __init__(self, **how: Any) -> None:
        self.now = 100.0
        self.needed: set[str] = set()
        self.answers: dict[str, int | None] = {}
        self.asked: list[set[str]] = []
        self.recorded: list[dict[str, int | None]] = []
        cluster, store = FakeCluster(), Store(lambda _: None, KEYS)
        store.upsert(JOBS, cluster.put(JOBS, b.job()))
        found = store.snapshot(KEY)
        assert found is not None
        self.snapshot: Snapshot = found
        lookup = Lookup("numbers", lambda _: self.needed, self._read, self._record, **how)
        self.lookups = Lookups(cluster, store, [lookup], clock=lambda: self.now)

    async def _read(self, cluster: Cluster, key: JobKey, questions: Collection[str]) -> Mapping[str, int | None]:
        self.asked.append(set(questions))
        return {question: self.answers[question] for question in questions if question in self.answers}

    def _record(self, store: Store, key: JobKey, answers: Mapping[str, int | None]) -> None:
        self.recorded.append(dict(answers))

    async def run(self) -> float | None:
        return await self.lookups.after_decision(KEY, self.snapshot)


@pytest.mark.parametrize(
    ("how", "answers", "wait"),
    [
        ({}, {"a": 1, "b": 2}, None),
        ({}, {"a": 1, "b": None}, None),
        ({}, {"a": 1}, 5.0),
        ({"retry_seconds": 2.0}, {}, 2.0),
        ({"none_is_final": False}, {"a": 1, "b": None}, 5.0),
        ({"none_is_final": False}, {"a": 1, "b": 2}, None),
    ],
)
async def test_it_is_asked_again_until_every_question_has_a_final_answer(
    how: dict[str, Any], answers: dict[str, int | None], wait: float | None
) -> None:
    world = World(**how)
    world.needed, world.answers = {"a", "b"}, answers
    assert await world.run() == wait
    assert world.recorded == ([answers] if answers else [])


async def test_nothing_is_read_where_nothing_is_needed() -> None:
    for how in ({}, {"fresh_seconds": 5.0}, {"before_decision": True}):
        world = World(**how)
        assert await world.run() is None
        assert not await world.lookups.before_decision(KEY, world.snapshot)
        assert world.asked == world.recorded == []


async def test_a_decision_waits_only_for_what_it_asked_to_wait_for() -> None:
    world = World(before_decision=True)
    world.needed, world.answers = {"a"}, {"a": 1}
    assert await world.run() is None
    assert world.asked == []
    assert await world.lookups.before_decision(KEY, world.snapshot)
    assert world.recorded == [{"a": 1}]


async def test_an_answer_that_is_fresh_for_a_time_is_read_again_and_withdrawn_when_nobody_needs_it() -> None:
    world = World(patience_seconds=3.0, fresh_seconds=5.0)
    world.needed, world.answers = {"a", "b"}, {"a": 1}
    assert await world.run() == 3.0
    world.now += 1.0
    assert await world.run() == 2.0
    world.now += 2.0
    assert await world.run() == 5.0
    world.now += 4.0
    assert await world.run() == 1.0
    world.now += 1.0
    assert await world.run() == 5.0
    assert world.asked == [{"a", "b"}] * 2
    world.needed = {"b"}
    assert await world.run() == 5.0
    world.needed = set()
    assert await world.run() is None
    # "b" never had an answer.
    assert world.recorded == [{"a": 1}, {"a": 1}, {"a": None}]
    world.needed = {"a"}
    assert await world.run() == 3.0, "patience begins anew"
    world.lookups.forget(world.snapshot.job.uid)
    world.now += 2.0
    assert await world.run() == 3.0, "and for a job of the same name"
