"""Jobs that ask a gang scheduler for all of their workers at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.gang_schedulers import VOLCANO, bind, installed
from tests.cluster.operator_under_test import OperatorProcess, running_operator, training_job

pytestmark = pytest.mark.usefixtures("pods_run")

DONE = "print('trained')"


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as process:
        yield process


def status(cluster: Cluster, name: str = "job") -> dict[str, Any]:
    return dict(cluster.get("dtj", name).get("status") or {})


def condition(cluster: Cluster, kind: str, name: str = "job") -> dict[str, Any]:
    found = [item for item in status(cluster, name).get("conditions", []) if item["type"] == kind]
    return dict(found[0]) if found else {}


def pod_groups(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.items("podgroups.scheduling.volcano.sh")


def test_a_gang_of_volcano_waits_until_it_is_installed_and_leaves_nothing_reserved(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    job = training_job("job", DONE, scheduling={"gang": {"scheduler": "volcano"}, "queue": "research"})
    job["spec"]["resources"] = {"cpu": "100m", "memory": "64Mi"}
    cluster.apply(job)
    cluster.eventually(lambda: condition(cluster, "Running").get("reason") == "NotInstalled", 20, "told")
    assert "install Volcano" in condition(cluster, "Running")["message"]
    assert cluster.items("pods") == []
    with installed(cluster, VOLCANO):
        (group,) = cluster.eventually(lambda: pod_groups(cluster), 30, "the PodGroup")
        assert group["spec"] == {
            "minMember": 2,
            "minResources": {"cpu": "200m", "memory": "128Mi"},
            "queue": "research",
        }
        assert group["metadata"]["ownerReferences"][0]["uid"] == cluster.get("dtj", "job")["metadata"]["uid"]
        pods = cluster.eventually(lambda: len(found := cluster.items("pods")) == 2 and found, 20, "its pods")
        for pod in pods:
            assert pod["spec"]["schedulerName"] == "volcano"
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "job"
        # Volcano comes to it at last: both at once.
        node = cluster.items("nodes")[0]["metadata"]["name"]
        for pod in pods:
            bind(cluster, pod, node)
        cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 30, "Succeeded")
        cluster.eventually(lambda: not pod_groups(cluster), 30, "nothing is reserved")
