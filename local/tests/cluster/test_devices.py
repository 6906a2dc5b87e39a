"""Pods get devices of their node as from a device plugin, and two live pods never get the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
SHOW = 'echo "sees $CUDA_VISIBLE_DEVICES$CUDA_DEVICE_ORDER"; '


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """Adds a node for this test alone, with one device of this machine."""
    name = f"{cluster.namespace}-gpu"
    add(cluster, name, ("5",))
    yield name
    cluster.embedded.call(cluster.embedded.cluster.remove_node(name))


def add(cluster: Cluster, name: str, gpus: tuple[str, ...]) -> None:
    config = NodeConfig(name=name, resources={GPU: gpus}, labels={"for": cluster.namespace})
    cluster.embedded.call(cluster.embedded.cluster.add_node(config))


def pod(cluster: Cluster, name: str, script: str, gpus: int, **spec: Any) -> Object:
    resources = {"limits": {GPU: gpus}} if gpus else {}
    made = {"name": "c", "image": "busybox:1.37", "command": ["sh", "-c", SHOW + script], "resources": resources}
    fixed = {"nodeSelector": {"for": cluster.namespace}, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    body = {"containers": [made], **fixed, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def seen(cluster: Cluster, name: str) -> list[str]:
    """Returns the output of each run of a pod's program, in order; waits for the first."""
    lines = cluster.eventually(lambda: cluster.log(name).splitlines(), what=f"the log of {name}")
    return [line.removeprefix("sees ") for line in lines]


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pod", name)["status"]["phase"])


def test_pods_see_their_own_devices_and_no_others(cluster: Cluster) -> None:
    name = f"{cluster.namespace}-gpus"
    add(cluster, name, ("2", "3", "MIG-c6d4"))
    try:
        capacity = cluster.get("node", name)["status"]
        assert (capacity["capacity"][GPU], capacity["allocatable"][GPU]) == ("3", "3")
        cluster.apply(pod(cluster, "two", "sleep 600", 2))
        assert seen(cluster, "two") == ["2,3"]
        cluster.apply(pod(cluster, "one", "sleep 600", 1), pod(cluster, "none", "sleep 600", 0))
        assert seen(cluster, "one") == ["MIG-c6d4"]
        assert seen(cluster, "none") == ["-1"]
    finally:
        cluster.embedded.call(cluster.embedded.cluster.remove_node(name))


def test_numbers_are_those_of_the_users_device_order(
    cluster: Cluster, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", ":PCI_BUS_ID")
    cluster.apply(pod(cluster, "ordered", "true", 1))
    assert seen(cluster, "ordered") == ["5:PCI_BUS_ID"]


def test_fake_devices_have_numbers(cluster: Cluster) -> None:
    """The session's node has eight."""
    cluster.shared.needs_embedded("a real device plugin names real devices")
    cluster.apply(pod(cluster, "fake", "true", 8, nodeSelector={}))
    assert seen(cluster, "fake") == ["0,1,2,3,4,5,6,7"]


def test_a_container_that_restarts_keeps_its_device(cluster: Cluster, node: str) -> None:
    script = "if [ -e once ]; then sleep 600; fi; touch once; exit 1"
    cluster.apply(pod(cluster, "again", script, 1, restartPolicy="Always"))
    cluster.eventually(
        lambda: cluster.get("pod", "again")["status"]["containerStatuses"][0]["restartCount"] == 1, what="its restart"
    )
    assert seen(cluster, "again") == ["5"]


def test_a_second_pod_waits_for_the_only_device(cluster: Cluster, node: str, pods_folder: Path) -> None:
    end = pods_folder / "end"
    cluster.apply(pod(cluster, "first", f"until [ -e {end} ]; do sleep 0.05; done", 1))
    assert seen(cluster, "first") == ["5"]
    cluster.apply(pod(cluster, "second", "true", 1))

    def refusal() -> str:
        conditions = cluster.get("pod", "second")["status"].get("conditions") or []
        return next((entry["message"] for entry in conditions if entry["reason"] == "Unschedulable"), "")

    message = cluster.eventually(refusal, what="the scheduler's refusal")
    assert "1 Insufficient nvidia.com/gpu" in message
    assert phase(cluster, "second") == "Pending"
    end.touch()
    assert seen(cluster, "second") == ["5"]
    assert phase(cluster, "first") == "Succeeded"


def test_a_device_is_given_again_when_its_last_process_has_ended(
    cluster: Cluster, node: str, pods_folder: Path
) -> None:
    """A pod deleted by force leaves the API at once, and the scheduler reuses its place while its program still
    runs.
    """
    pid = pods_folder / "pid"
    cluster.apply(pod(cluster, "stubborn", f"trap '' TERM; echo $$ > {pid}; while true; do sleep 0.1; done", 1))
    assert seen(cluster, "stubborn") == ["5"]
    cluster.apply(pod(cluster, "next", f"if kill -0 $(cat {pid}) 2>&-; then echo not alone; fi", 1))
    cluster.kubectl("delete", "pod", "stubborn", "--force", "--grace-period=0", "--wait=false")
    cluster.eventually(lambda: cluster.get("pod", "next")["spec"].get("nodeName"), what="its place on the node")
    assert phase(cluster, "next") == "Pending"
    cluster.eventually(lambda: phase(cluster, "next") == "Succeeded", what="its end")
    assert seen(cluster, "next") == ["5"]


def test_a_pod_bound_to_a_full_node_is_rejected(cluster: Cluster, node: str) -> None:
    """`pkg/kubelet/lifecycle/predicate.go`: the kubelet also counts devices if no scheduler did."""
    cluster.apply(pod(cluster, "first", "sleep 600", 1))
    assert seen(cluster, "first") == ["5"]
    cluster.apply(pod(cluster, "pushed", "true", 1, nodeName=node))
    status = cluster.eventually(
        lambda: (now := cluster.get("pod", "pushed")["status"])["phase"] == "Failed" and now, what="its rejection"
    )
    assert (status["reason"], status["message"]) == (
        "OutOfnvidia.com/gpu",
        "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 1, capacity: 1",
    )
