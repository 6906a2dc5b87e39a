"""Jobs request all of their workers at once from a gang scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gang_schedulers import KUEUE, VOLCANO, admit, bind, evict, installed
from tests.cluster.operator_under_test import OperatorProcess, condition, status, training_job
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

pytestmark = [pytest.mark.usefixtures("pods_run"), pytest.mark.alone]

DONE = "print('trained')"


def pod_groups(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.items("podgroups.scheduling.volcano.sh")


def test_a_gang_of_volcano_waits_until_it_is_installed_and_leaves_nothing_reserved(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    job = training_job("job", DONE, scheduling={"gang": {"scheduler": "volcano"}, "queue": "research"})
    job["spec"]["resources"] = {"cpu": "100m", "memory": "64Mi"}
    cluster.apply(job)
    cluster.eventually(lambda: condition(cluster, "Running").get("reason") == "NotInstalled", 60, "shown")
    assert "install Volcano" in condition(cluster, "Running")["message"]
    assert cluster.items("pods") == []
    with installed(cluster, VOLCANO):
        (group,) = cluster.eventually(lambda: pod_groups(cluster), 60, "the PodGroup")
        assert group["spec"] == {
            "minMember": 2,
            "minResources": {"cpu": "200m", "memory": "128Mi"},
            "queue": "research",
        }
        assert group["metadata"]["ownerReferences"][0]["uid"] == cluster.get("dtj", "job")["metadata"]["uid"]
        pods = cluster.eventually(lambda: len(found := cluster.items("pods")) == 2 and found, 60, "its pods")
        for pod in pods:
            assert pod["spec"]["schedulerName"] == "volcano"
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "job"
    # Somebody reinstalls it: its objects are gone with the type, and so is every watch of them.
    cluster.eventually(lambda: condition(cluster, "Running").get("reason") == "NotInstalled", 60, "shown again")
    with installed(cluster, VOLCANO):
        (group,) = cluster.eventually(lambda: pod_groups(cluster), 60, "the PodGroup of the new installation")
        cluster.delete("podgroup.scheduling.volcano.sh", "job", wait=False)
        uid = group["metadata"]["uid"]
        cluster.eventually(
            lambda: [one for one in pod_groups(cluster) if one["metadata"]["uid"] != uid], 60, "what is lost is seen"
        )
        # Finally Volcano binds both at once.
        node = cluster.items("nodes")[0]["metadata"]["name"]
        for pod in pods:
            bind(cluster, pod, node)
        cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")
        cluster.eventually(lambda: not pod_groups(cluster), 60, "nothing is reserved")


@pytest.fixture
def two_racks(cluster: Cluster) -> Iterator[list[NodeConfig]]:
    """Adds two nodes with three accelerators each, for this test alone."""
    nodes = [
        NodeConfig(
            name=f"{cluster.namespace}-{rack}",
            resources={"nvidia.com/gpu": 3},
            labels={"for": cluster.namespace, "rack": rack},
        )
        for rack in ("east", "west")
    ]
    yield nodes
    there = {node["metadata"]["name"] for node in cluster.items("nodes")}
    for node in nodes:
        if node.name not in there:
            continue
        cluster.embedded.call(cluster.embedded.cluster.remove_node(node.name))


def test_two_jobs_with_accelerators_for_one_and_a_half_dont_block_each_other(
    cluster: Cluster, operator: OperatorProcess, two_racks: list[NodeConfig]
) -> None:
    """Each job needs two accelerators in either rack. Each job is the first in one of the racks."""
    important = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": cluster.namespace},
        "value": 10,
        "preemptionPolicy": "Never",
    }

    def half_job(name: str, **scheduling: Any) -> dict[str, Any]:
        job = training_job(name, DONE, failurePolicy={"startupSeconds": 40}, scheduling=scheduling)
        del job["spec"]["workers"]
        job["spec"]["workerGroups"] = [
            {
                "name": rack,
                "workers": 2,
                "resources": {"gpus": 1},
                "nodeSelector": {"for": cluster.namespace, "rack": rack},
            }
            for rack in ("east", "west")
        ]
        return job

    def placed(name: str) -> int:
        pods = cluster.items("pods", labels=f"trainmaster.dev/job-name={name}")
        return sum("nodeName" in pod["spec"] for pod in pods)

    east, west = two_racks
    cluster.apply(important)
    cluster.embedded.call(cluster.embedded.cluster.add_node(east))
    cluster.apply(half_job("first"))
    cluster.eventually(lambda: placed("first") == 2, 60, "half of the first job")
    cluster.apply(half_job("second", priorityClassName=cluster.namespace))
    cluster.eventually(lambda: placed("second") == 1, 60, "a quarter of the second job")
    cluster.embedded.call(cluster.embedded.cluster.add_node(west))
    ends = {}
    for name in ("first", "second"):
        cluster.eventually(lambda name=name: status(cluster, name).get("phase") in ("Succeeded", "Failed"), 180, name)
        ends[name] = status(cluster, name)["phase"]
    assert ends == {"first": "Succeeded", "second": "Succeeded"}
    reasons = [event["reason"] for event in cluster.items("events")]
    assert "SchedulingBackoff" in reasons
    assert cluster.kubectl("delete", "priorityclass", cluster.namespace).returncode == 0


# Prints its place and trains until the file that its argument names exists.
WHO = """
import os, pathlib, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def test_ranks_follow_the_racks_and_packed_workers_share_one(
    cluster: Cluster, operator: OperatorProcess, two_racks: list[NodeConfig], tmp_path: Path
) -> None:
    for node in two_racks:
        cluster.embedded.call(cluster.embedded.cluster.add_node(node))

    def placed_job(name: str, workers: int, **topology: Any) -> dict[str, Any]:
        job = training_job(name, WHO, workers=workers, scheduling={"topology": {"key": "rack", **topology}})
        job["spec"]["args"] = [str(tmp_path / "end")]
        job["spec"]["resources"] = {"gpus": 1}
        job["spec"]["podTemplate"] = {"spec": {"nodeSelector": {"for": cluster.namespace}}}
        return job

    def racks(name: str) -> list[str]:
        pods = cluster.items("pods", labels=f"trainmaster.dev/job-name={name}")
        by_name = sorted((pod["metadata"]["name"], pod["spec"].get("nodeName", "")) for pod in pods)
        return [node.rpartition("-")[2] for _, node in by_name]

    cluster.apply(placed_job("spread", 4, mode="Spread"))
    cluster.eventually(lambda: status(cluster, "spread").get("phase") == "Running", 60, "Running")
    where = racks("spread")
    assert sorted(where) == ["east", "east", "west", "west"]
    ranks = status(cluster, "spread")["workerOrder"]
    assert (status(cluster, "spread")["attempt"], ranks[0]) == (1, 0)
    in_order = [where[worker] for worker in ranks]
    assert in_order in (["east", "east", "west", "west"], ["west", "west", "east", "east"])
    for rank, worker in enumerate(ranks):
        said = ("logs", f"spread-{worker}", "-c", "worker")
        cluster.eventually(lambda said=said, rank=rank: f"rank {rank} of 4" in cluster.kubectl(*said).stdout)
    (tmp_path / "end").touch()
    cluster.eventually(lambda: status(cluster, "spread").get("phase") == "Succeeded", 60, "Succeeded")
    cluster.eventually(lambda: racks("spread") == [], 60, "room")
    (tmp_path / "end").unlink()
    cluster.apply(placed_job("packed", 3, mode="Pack"))
    cluster.eventually(lambda: status(cluster, "packed").get("phase") == "Running", 60, "Running")
    assert len(set(racks("packed"))) == 1
    (tmp_path / "end").touch()
    cluster.eventually(lambda: status(cluster, "packed").get("phase") == "Succeeded", 60, "Succeeded")


def test_kueue_admits_evicts_and_admits_again(
    cluster: Cluster, operator: OperatorProcess, two_racks: list[NodeConfig], tmp_path: Path
) -> None:
    for node in two_racks:
        cluster.embedded.call(cluster.embedded.cluster.add_node(node))
    flavor = f"{cluster.namespace}-west"
    job = training_job("job", WHO, elastic={"minWorkers": 1, "maxWorkers": 2}, resources={"gpus": 1})
    job["spec"]["scheduling"] = {"gang": {"scheduler": "kueue"}, "queue": "team"}
    job["spec"]["args"] = [str(tmp_path / "end")]
    job["spec"]["podTemplate"] = {"spec": {"terminationGracePeriodSeconds": 3}}

    def workload() -> dict[str, Any]:
        found = cluster.items("workloads.kueue.x-k8s.io")
        return found[0] if found else {}

    def says(kind: str) -> str:
        conditions = workload().get("status", {}).get("conditions", [])
        return next((item["status"] for item in conditions if item["type"] == kind), "")

    def is_running(workers: int) -> bool:
        now = status(cluster)
        return now.get("phase") == "Running" and len(now["workerOrder"]) == workers

    with installed(cluster, *KUEUE):
        labels = {"for": cluster.namespace, "rack": "west"}
        cluster.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ResourceFlavor",
                "metadata": {"name": flavor},
                "spec": {"nodeLabels": labels},
            }
        )
        cluster.apply(job)
        made = cluster.eventually(workload, 60, "the Workload")
        (pod_set,) = made["spec"]["podSets"]
        assert (made["spec"]["queueName"], pod_set["name"]) == ("team", "worker")
        assert (pod_set["count"], pod_set["minCount"]) == (2, 1)
        assert pod_set["template"]["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
        cluster.eventually(lambda: condition(cluster, "Suspended").get("reason") == "Queued", 60, "held")
        assert cluster.items("pods") == []

        # Half of it, on the flavor's nodes.
        admit(cluster, "job", 1, flavor)
        cluster.eventually(lambda: is_running(1), 60, "one worker")
        assert cluster.items("pods")[0]["spec"]["nodeName"] == two_racks[1].name
        cluster.eventually(lambda: says("PodsReady") == "True", 60, "PodsReady")

        evict(cluster, "job", "Preempted")
        cluster.eventually(lambda: not cluster.items("pods"), 60, "no pods")
        cluster.eventually(lambda: says("QuotaReserved") == "False", 60, "the quota is given back")
        cluster.eventually(lambda: (says("Admitted"), says("Requeued")) == ("False", "True"), what="it may come again")
        assert workload()["status"].get("admission") is None
        assert "evicted by Kueue (Preempted)" in condition(cluster, "Suspended")["message"]

        admit(cluster, "job", 2, flavor)
        cluster.eventually(lambda: is_running(2), 60, "two workers")
        now = status(cluster)
        assert (now["attempt"], now.get("restarts", 0), now.get("disruptions", 0)) == (2, 0, 0)
        (tmp_path / "end").touch()
        cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")
        cluster.eventually(lambda: says("Finished") == "True", 60, "Finished")
        cluster.delete("resourceflavor", flavor)


def test_a_gang_is_its_workers_and_never_waits_for_its_spares(cluster: Cluster, operator: OperatorProcess) -> None:
    job = training_job("job", DONE, spares=1, scheduling={"gang": {"scheduler": "volcano"}})
    job["spec"]["resources"] = {"cpu": "100m"}
    with installed(cluster, VOLCANO):
        cluster.apply(job)
        pods = cluster.eventually(lambda: len(found := cluster.items("pods")) == 3 and found, 60, "its pods")
        (group,) = pod_groups(cluster)
        assert group["spec"] == {"minMember": 2, "minResources": {"cpu": "200m"}}
        node = cluster.items("nodes")[0]["metadata"]["name"]
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))[:2]:
            bind(cluster, pod, node)
        cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded without its spare")


def test_kueues_quota_is_for_the_spares_too(
    cluster: Cluster, operator: OperatorProcess, two_racks: list[NodeConfig], tmp_path: Path
) -> None:
    cluster.embedded.call(cluster.embedded.cluster.add_node(two_racks[1]))
    flavor = f"{cluster.namespace}-west"
    job = training_job("job", WHO, elastic={"minWorkers": 1, "maxWorkers": 2}, spares=1, resources={"gpus": 1})
    job["spec"]["scheduling"] = {"gang": {"scheduler": "kueue"}, "queue": "team"}
    job["spec"]["args"] = [str(tmp_path / "end")]
    labels = {"for": cluster.namespace, "rack": "west"}
    with installed(cluster, *KUEUE):
        cluster.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ResourceFlavor",
                "metadata": {"name": flavor},
                "spec": {"nodeLabels": labels},
            }
        )
        cluster.apply(job)
        (made,) = cluster.eventually(lambda: cluster.items("workloads.kueue.x-k8s.io"), 60, "the Workload")
        (pod_set,) = made["spec"]["podSets"]
        assert (pod_set["count"], pod_set["minCount"]) == (3, 2)
        admit(cluster, "job", 2, flavor)
        cluster.eventually(lambda: status(cluster).get("phase") == "Running", 60, "one worker and its spare")
        assert status(cluster)["workerOrder"] == [0]
        assert len(cluster.items("pods")) == 2
        (tmp_path / "end").touch()
        cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")
        cluster.delete("resourceflavor", flavor)
