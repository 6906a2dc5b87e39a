"""`writing.agent_config_maps` makes each namespace's agent once, trusts it only if its name matches, and tidies up."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Forbidden, Refused
from trainmaster_operator.controller.cache.views import child_view
from trainmaster_operator.controller.writing.agent_config_maps import LOOK_SECONDS, AgentConfigMaps
from trainmaster_operator.rendering import AgentConfigMap
from trainmaster_operator.rendering.agent_source import config_map_name

from .world import ZIPAPP, World

EARLIER = b"an earlier agent"
NAME, EARLIER_NAME = config_map_name(ZIPAPP), config_map_name(EARLIER)


def config_map(zipapp: bytes = ZIPAPP, name: str = NAME, **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": b.NAMESPACE, "labels": {"trainmaster.dev/content": "agent"}},
        "immutable": True,
        "binaryData": {"agent.pyz": base64.b64encode(zipapp).decode()},
        **changes,
    }


def stateful_set(name: str = "bert", agent: str = NAME, replicas: int = 2) -> dict[str, Any]:
    made = b.child("StatefulSet", name)
    made["spec"] = {
        "replicas": replicas,
        "template": {"spec": {"volumes": [{"name": "trainmaster-agent", "configMap": {"name": agent}}]}},
    }
    return made


def calls(world: World) -> dict[str, int]:
    return {verb: count for (verb, kind), count in world.cluster.calls.items() if kind == "ConfigMap"}


def names(world: World) -> list[str]:
    return [name for plural, _, name in world.cluster.objects if plural == "configmaps"]


async def test_it_is_made_once_before_the_first_set_that_names_it() -> None:
    world = World()
    await world.write(stateful_set())
    await world.write(stateful_set("bert-2"))
    made = world.stored("configmaps", NAME)
    assert made["immutable"] is True
    assert {name: base64.b64decode(data) for name, data in made["binaryData"].items()} == {"agent.pyz": ZIPAPP}
    assert world.writes() == [("create", kind) for kind in ("ConfigMap", "StatefulSet", "StatefulSet")]


async def test_jobs_that_begin_together_make_it_once() -> None:
    world = World()
    await asyncio.gather(*(world.write(stateful_set(f"bert-{index}")) for index in range(8)))
    assert calls(world) == {"create": 1}


@pytest.mark.parametrize("manifest", [b.child("StatefulSet"), stateful_set(replicas=0)], ids=["bundled", "no pods"])
async def test_a_set_whose_pods_dont_mount_it_needs_none(manifest: dict[str, Any]) -> None:
    world = World()
    await world.write(manifest)
    assert names(world) == []


async def test_an_operator_that_starts_again_reads_the_one_that_is_there() -> None:
    world = World()
    await world.write(stateful_set())
    world.restart()
    await world.write(stateful_set("bert-2"))
    assert calls(world) == {"create": 2, "get": 1}, "the second create was answered with 409"


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (config_map(b"another program"), "has other content than its name says"),
        (config_map(data={"extra": "x"}), "has other content than its name says"),
        (config_map(binaryData={"agent.pyz": "no base64!"}), "has other content than its name says"),
        (config_map(binaryData={}), "has other content than its name says"),
        (config_map(immutable=False), "isn't immutable"),
    ],
    ids=["another program", "more than it", "nonsense", "nothing", "not immutable"],
)
async def test_one_that_isnt_what_its_name_says_gets_no_pods(there: dict[str, Any], problem: str) -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, there)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await world.write(stateful_set())
        assert refused.value.message == (
            f"the ConfigMap {NAME!r} {problem}, so no pod is made that would run what is in it; delete it: the "
            "operator makes it again"
        )
    assert not [place for place in world.cluster.objects if place[0] == "statefulsets"]
    world.cluster.remove(CONFIG_MAPS, b.NAMESPACE, NAME)
    await world.write(stateful_set())


async def test_a_namespace_where_it_cant_be_made_says_so() -> None:
    world = World()
    answer = "exceeded quota: maps, requested: count/configmaps=1, used: count/configmaps=5, limited: 5"
    world.cluster.fail("create", "configmaps", Forbidden("POST configmaps", answer, status=403, reason="Forbidden"))
    with pytest.raises(Forbidden) as refused:
        await world.write(stateful_set())
    assert refused.value.message == (f"the ConfigMap {NAME!r}, from which pods have the agent, can't be made: {answer}")
    assert not [place for place in world.cluster.objects if place[0] == "statefulsets"]
    await world.write(stateful_set())
    assert names(world) == [NAME]


async def test_one_that_somebody_has_deleted_is_made_again_for_pods_that_wait() -> None:
    world = World()
    await world.write(stateful_set())
    world.cluster.remove(CONFIG_MAPS, b.NAMESPACE, NAME)
    await world.agents.ensure(b.NAMESPACE, NAME)
    assert names(world) == [NAME]


async def test_one_that_was_put_in_its_place_is_read_before_it_is_believed() -> None:
    world = World()
    await world.write(stateful_set())
    world.cluster.remove(CONFIG_MAPS, b.NAMESPACE, NAME)
    world.cluster.put(CONFIG_MAPS, config_map(b"another program"))
    with pytest.raises(Refused, match="has other content than its name says"):
        await world.agents.ensure(b.NAMESPACE, NAME)


async def test_it_is_looked_for_once_however_many_pods_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.write(stateful_set())
    now = asyncio.get_running_loop().time()
    for seconds in (0, 1, LOOK_SECONDS - 1, LOOK_SECONDS + 1):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda at=now + seconds: at)
        await world.agents.ensure(b.NAMESPACE, NAME)
    assert calls(world) == {"create": 1, "list": 2}


async def test_the_agent_of_an_earlier_operator_is_used_but_cant_be_made() -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, config_map(EARLIER, EARLIER_NAME))
    await world.write(stateful_set(agent=EARLIER_NAME))
    await world.agents.ensure(b.NAMESPACE, EARLIER_NAME)
    world.restart()
    world.cluster.remove(CONFIG_MAPS, b.NAMESPACE, EARLIER_NAME)
    with pytest.raises(Refused, match=r"is gone, and the operator, .*; delete the job's StatefulSets") as refused:
        await world.agents.ensure(b.NAMESPACE, EARLIER_NAME)
    assert refused.value.reason == "AgentGone"
    assert names(world) == [], "the operator's own is no job's yet"


async def test_what_no_set_names_any_more_is_removed() -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, config_map(EARLIER, EARLIER_NAME))
    world.cluster.put(CONFIG_MAPS, {"metadata": {"name": "somebody's", "namespace": b.NAMESPACE}})
    await world.write(stateful_set())
    await world.write(stateful_set("bert-2", agent=EARLIER_NAME))
    await world.agents.remove_unused()
    assert names(world) == [EARLIER_NAME, "somebody's", NAME]
    world.store.delete(STATEFUL_SETS, world.stored("statefulsets", "bert-2"))
    await world.agents.remove_unused()
    assert names(world) == ["somebody's", NAME]
    world.store.delete(STATEFUL_SETS, world.stored("statefulsets"))
    await world.agents.remove_unused()
    assert names(world) == ["somebody's"]
    await world.write(stateful_set("bert-3"))
    assert names(world) == ["somebody's", NAME]


async def test_it_isnt_removed_while_a_set_is_written_that_needs_it() -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, config_map())
    async with world.agents.provided(b.NAMESPACE, NAME):
        await world.agents.remove_unused()
        assert names(world) == [NAME]
    await world.agents.remove_unused()
    assert names(world) == []


async def test_a_set_that_comes_while_it_is_removed_has_it_made_again() -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, config_map())
    await asyncio.gather(world.agents.remove_unused(), _after(3, world.write(stateful_set())))
    assert names(world) == [NAME]


async def _after(turns: int, work: Any) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await work


async def test_namespaces_that_arent_served_are_left_alone() -> None:
    world = World()
    world.cluster.put(CONFIG_MAPS, config_map())
    agents = AgentConfigMaps(world.cluster, world.store, ZIPAPP, ["other"], interval=60.0)
    await agents.remove_unused()
    assert names(world) == [NAME]


async def test_it_goes_a_moment_after_the_last_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_operator.controller.writing.agent_config_maps.REMOVE_AFTER", 0.0)
    world = World()
    await world.write(stateful_set())
    running = asyncio.create_task(world.agents.run())
    try:
        await _after(10, asyncio.sleep(0))
        assert names(world) == [NAME]
        world.store.delete(STATEFUL_SETS, world.stored("statefulsets"))
        world.agents.set_is_gone.set()
        await until(lambda: names(world) == [])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("pod", "agent"),
    [
        ({"volumes": [{"name": "trainmaster-agent", "configMap": {"name": NAME}}]}, AgentConfigMap(NAME)),
        ({"volumes": [{"name": "trainmaster-agent", "configMap": {"name": "of-a-user"}}]}, None),
        ({"volumes": [{"name": "data", "configMap": {"name": NAME}}]}, None),
        ({"volumes": [{"name": "trainmaster-agent", "image": {"reference": "a:1"}}]}, None),
        ({"volumes": [None, 7]}, None),
        ({"volumes": {"name": "trainmaster-agent"}}, None),
        (None, None),
    ],
)
def test_a_sets_template_says_which_agent_its_job_has_begun_with(pod: Any, agent: AgentConfigMap | None) -> None:
    template = stateful_set()
    template["spec"]["template"] = {"spec": pod}
    assert child_view("StatefulSet", template, KEYS).agent == agent
