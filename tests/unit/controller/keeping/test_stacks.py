"""`keeping.stacks` keeps the workers' answers to the newest request only, bounded and escaped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.controller import builders as b
from tests.unit.controller.polling import until
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.evidence import Stacks
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, JOBS
from trainmaster_operator.controller.apiserver.errors import Conflict, Forbidden
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.stacks import StacksKeeper, fitted
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine


@dataclass
class World(BaseWorld):
    spec: dict[str, Any] = field(default_factory=dict)
    keep_output: bool = True
    answer_seconds: float = 5.0
    problem: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.put(JOBS, b.job(**self.spec))
        self.job = self.snapshot().job
        self.keeper = StacksKeeper(JobConfigMaps(self.cluster, self.keep_output), self._ask, self.answer_seconds)

    async def _ask(self, key: JobKey, request: str) -> str:
        return self.problem

    def ask(self, request: str = "one", workers: tuple[int, ...] = (0, 1)) -> None:
        self.keeper.collect(KEY, self.job, CollectStacks(request, 1, workers))

    def answer(self, worker: int, text: str = "in train", request: str = "one", **fields: Any) -> None:
        ranks = {worker: RankState(step=7, text=text, limit="x", limit_seconds=9.0)}
        line = EvidenceLine(1, worker, ranks, request=request)._replace(**fields)
        self.keeper.record(b.JOB_UID, line)

    def object(self) -> dict[str, Any]:
        return self.cluster.objects.get(("configmaps", b.NAMESPACE, "bert-stacks"), {})

    def kept(self) -> Stacks | None:
        return Stacks.parse(self.object().get("data", {}))

    async def until_kept(self, request: str = "one") -> Stacks:
        await until(lambda: (kept := self.kept()) is not None and kept.request == request)
        kept = self.kept()
        assert kept is not None
        return kept


async def test_it_is_written_when_all_workers_have_answered() -> None:
    world = World()
    world.ask()
    world.answer(0)
    await asyncio.sleep(0.05)
    assert world.kept() is None
    world.answer(1, "in wait\nin train")
    kept = await world.until_kept()
    assert kept.ranks == {0: {"step": 7, "text": "in train"}, 1: {"step": 7, "text": "in wait\nin train"}}
    assert (kept.attempt, kept.unanswered, kept.problem) == (1, (), "")
    assert world.object()["data"]["rank-1.txt"] == "in wait\nin train", "for a person with kubectl"
    assert world.object()["metadata"]["ownerReferences"][0]["uid"] == b.JOB_UID
    assert world.object()["metadata"]["labels"]["trainmaster.dev/content"] == "stacks", "kept out of the watch"


async def test_workers_that_do_not_answer_are_named_and_one_without_ranks_has_answered() -> None:
    world = World(answer_seconds=0.1)
    world.ask(workers=(0, 1, 2))
    world.answer(0)
    world.answer(2, ranks={})
    assert (await world.until_kept()).unanswered == (1,)


async def test_a_worker_with_many_ranks_answers_in_several_lines() -> None:
    world = World(answer_seconds=0.1)
    world.ask()
    world.answer(0)
    world.answer(1, more=True)
    assert (await world.until_kept()).unanswered == (1,)


async def test_why_nobody_could_be_asked_is_kept() -> None:
    world = World(problem="no worker's agent is connected")
    world.ask()
    kept = await world.until_kept()
    assert (kept.problem, kept.unanswered, kept.ranks) == ("no worker's agent is connected", (0, 1), {})


async def test_the_newest_request_takes_the_place_of_the_one_before() -> None:
    world = World()
    world.ask(workers=(0, 1))
    world.answer(0)
    world.answer(1)
    await world.until_kept()
    world.ask("two", workers=(0,))
    world.answer(0, request="one")
    world.answer(0, request="two", attempt=2)
    await asyncio.sleep(0.05)
    assert (kept := world.kept()) is not None and kept.request == "one", "what was no answer to it counts for nothing"
    world.answer(0, request="two")
    assert list((await world.until_kept("two")).ranks) == [0]
    assert "rank-1.txt" not in world.object()["data"]


async def test_an_answer_to_a_request_that_was_given_up_is_not_written() -> None:
    world = World()
    world.ask("one")
    world.ask("two", workers=(0,))
    world.answer(0, request="two")
    await world.until_kept("two")
    world.answer(1, request="one")
    world.keeper.forget(b.JOB_UID)
    world.keeper.record("another-uid", EvidenceLine(1, 0, {}, request="two"))


@pytest.mark.parametrize(
    "world", [World(keep_output=False), World({"runPolicy": {"keepLogs": False}})], ids=["operator", "job"]
)
async def test_no_stacks_are_kept_where_output_is_not(world: World) -> None:
    world.ask(workers=(0,))
    world.answer(0, "a patient's name")
    kept = await world.until_kept()
    assert kept.withheld and kept.ranks == {0: {"step": 7, "text": ""}}
    assert "patient" not in str(world.object())


async def test_texts_from_pods_are_harmless() -> None:
    world = World()
    world.ask(workers=(0,))
    world.answer(0, "\x1b]52;c;aGk=\x07in train\n\ud800")
    assert (await world.until_kept()).ranks[0]["text"] == "]52;c;aGk=in train\n?"


async def test_an_object_of_somebody_elses_is_left_alone_and_a_conflict_is_tried_again() -> None:
    world = World()
    metadata = {"namespace": b.NAMESPACE, "name": "bert-stacks", "ownerReferences": b.owner("another-job")}
    world.cluster.put(CONFIG_MAPS, {"metadata": metadata, "data": {"mine": "x"}})
    world.ask(workers=(0,))
    world.answer(0)
    await asyncio.sleep(0.1)
    assert world.object()["data"] == {"mine": "x"}
    world.cluster.put(CONFIG_MAPS, {"metadata": {**metadata, "ownerReferences": b.owner()}, "data": {"old": "x"}})
    world.cluster.fail("patch", "configmaps", Conflict("patch", "changed"))
    world.ask(workers=(0,))
    world.answer(0)
    await world.until_kept()
    assert "old" not in world.object()["data"]


async def test_what_can_not_be_written_is_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.cluster.fail("create", "configmaps", Forbidden("create", "exceeded quota: configmaps"))
    world.ask(workers=(0,))
    world.answer(0)
    await until(lambda: "the stacks can't be kept" in caplog.text)
    assert "exceeded quota" in caplog.text and world.kept() is None
    await world.keeper.close()


def test_what_is_kept_has_a_bound() -> None:
    text = "\N{SNOWMAN}" * 10_000
    many = Stacks("one", 1, ranks={rank: {"step": 1, "text": text} for rank in range(100)})
    kept = fitted(many, limit=200_000, most_ranks=80)
    size = sum(len(key) + len(value.encode()) for key, value in kept.to_data().items())
    assert 100_000 < size <= 200_000
    assert sorted(kept.ranks) == list(range(80)) and kept.left_out == 20
    assert len({len(state["text"]) for state in kept.ranks.values()}) == 1
    assert fitted(Stacks("one", 1, ranks={0: {"text": "in train"}})).ranks[0]["text"] == "in train"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"request": 7}', "[" * 100_000, '{"request": "one", "ranks": 7, "unanswered": 7}']
)
def test_whatever_somebody_has_written_there_is_read_or_passed_over(text: str) -> None:
    found = Stacks.parse({"stacks.json": text})
    assert found is None or (found.request, found.ranks, found.unanswered) == ("one", {}, ())
