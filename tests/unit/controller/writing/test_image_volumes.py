"""`writing.image_volumes`: no pods are made whose volume the API server would leave out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.controller import builders as b
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, Forbidden, Refused

from .world import World

IMAGE = "ghcr.io/trainmaster/operator:0.1.0"


def stateful_set(name: str = "bert", image: str = IMAGE, **spec: Any) -> dict[str, Any]:
    made = b.child("StatefulSet", name)
    pod = {
        "containers": [{"name": "worker", "volumeMounts": [{"name": "trainmaster-agent"}]}],
        "volumes": [{"name": "trainmaster-agent", "image": {"reference": image}}],
    }
    made["spec"] = {"replicas": 2, "template": {"spec": pod}, **spec}
    return made


def without_image_volumes(created: dict[str, Any]) -> dict[str, Any]:
    """Returns what an API server stores whose feature gate is off (kubernetes: pkg/api/pod/util.go,
    dropImageVolumes)."""
    stored = copy.deepcopy(created)
    if created.get("kind") == "StatefulSet":
        pod = stored["spec"]["template"].get("spec") or {"volumes": [], "containers": []}
        left_out = [volume["name"] for volume in pod["volumes"] if "image" in volume]
        pod["volumes"] = [volume for volume in pod["volumes"] if "image" not in volume]
        for container in pod["containers"]:
            mounts = container["volumeMounts"]
            container["volumeMounts"] = [mount for mount in mounts if mount["name"] not in left_out]
    return stored


async def test_an_api_server_that_serves_them_is_asked_once() -> None:
    world = World()
    await world.write(stateful_set())
    await world.write(stateful_set("bert-2"))
    assert world.writes() == [
        ("create dry-run", "StatefulSet"),
        ("create", "StatefulSet"),
        ("create", "StatefulSet"),
    ], "and no ConfigMap"


async def test_one_that_leaves_the_volume_out_gets_no_set_until_it_doesnt() -> None:
    world = World()
    world.cluster.admit = without_image_volumes
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await world.write(stateful_set())
        assert refused.value.reason == "NoImageVolumes"
        assert refused.value.message == (
            f"the API server leaves out the volume of the image '{IMAGE}', from which pods would have the agent: its "
            "feature gate ImageVolume is off; switch it on (it is from Kubernetes 1.35), or run the operator without "
            "--agent-image-volume: pods then mount the agent from a ConfigMap"
        )
    assert world.writes() == [("create dry-run", "StatefulSet"), ("create dry-run", "StatefulSet")]
    world.cluster.admit = lambda created: created
    await world.write(stateful_set())
    assert world.writes()[2:] == [("create dry-run", "StatefulSet"), ("create", "StatefulSet")]


async def test_what_else_refuses_the_set_says_so_itself() -> None:
    world = World()
    answer = Forbidden("POST statefulsets", "not from this registry", status=403, reason="Forbidden")
    world.cluster.fail("create dry-run", "statefulsets", answer)
    with pytest.raises(Forbidden, match="not from this registry"):
        await world.write(stateful_set())
    assert world.writes() == [("create dry-run", "StatefulSet")]


async def test_sets_of_jobs_that_have_begun_otherwise_need_nothing_of_it() -> None:
    world = World()
    world.cluster.admit = without_image_volumes
    await world.write(b.child("StatefulSet"))
    await world.write(stateful_set("suspended", replicas=0))
    assert world.writes() == [("create", "StatefulSet"), ("create", "StatefulSet")]


async def test_a_set_that_is_there_is_decided_on_anew() -> None:
    world = World()
    snapshot = world.snapshot()
    await world.write(stateful_set())
    with pytest.raises(AlreadyExists):
        await world.write(stateful_set(), snapshot)
