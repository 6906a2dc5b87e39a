"""Pods of images of their own mount the agent from an image volume where the operator has `--agent-image-volume`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_under_test import condition, running_operator, status, training_job
from trainmaster_local.testing.clusters import Cluster

IMAGE = "ghcr.io/trainmaster/operator:0.1.0"
AGENT = "/run/trainmaster/agent/opt/trainmaster/agent.pyz"
OPTION = ("--agent-image-volume", IMAGE)


def own_image(name: str = "job", **spec: Any) -> dict[str, Any]:
    return training_job(name, "import time; time.sleep(600)", image="python:3.12", **spec)


def source(cluster: Cluster, name: str = "job") -> dict[str, Any]:
    """Returns where the pods of a set have the agent from."""
    pod = cluster.get("statefulset", name)["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "trainmaster-agent"]
    return {kind: value for kind, value in volume.items() if kind != "name"}


def has_replicas(cluster: Cluster, count: int) -> bool:
    return bool(cluster.get("statefulset", "job")["spec"]["replicas"] == count)


def test_pods_mount_the_image_and_no_config_map_is_made(cluster: Cluster, tmp_path: Path) -> None:
    with running_operator(cluster, tmp_path, *OPTION):
        cluster.apply(own_image())
        cluster.eventually(lambda: cluster.items("statefulsets"))
    assert source(cluster) == {"image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}}
    (worker,) = cluster.get("statefulset", "job")["spec"]["template"]["spec"]["containers"]
    assert worker["command"][:2] == ["python3", AGENT]
    assert not cluster.items("configmaps", labels="trainmaster.dev/content=agent")


@pytest.mark.parametrize("before", [(), OPTION], ids=["a ConfigMap", "an image"])
def test_a_job_keeps_what_it_has_begun_with_when_the_option_changes(
    cluster: Cluster, tmp_path: Path, before: tuple[str, ...]
) -> None:
    after = () if before else OPTION
    with running_operator(cluster, tmp_path, *before):
        cluster.apply(own_image())
        cluster.eventually(lambda: cluster.items("statefulsets"))
    begun = source(cluster)
    with running_operator(cluster, tmp_path, *after):
        # Its set is written anew: scaled to zero, and up again.
        for suspend, replicas in ((True, 0), (False, 2)):
            cluster.patch("dtj", "job", {"spec": {"runPolicy": {"suspend": suspend}}})
            cluster.eventually(partial(has_replicas, cluster, replicas), 60)
        assert source(cluster) == begun
        cluster.apply(own_image("later"))
        cluster.eventually(lambda: len(cluster.items("statefulsets")) == 2)
        assert source(cluster, "later").keys() != begun.keys()


@pytest.mark.usefixtures("pods_run")
def test_a_node_that_cant_mount_it_is_named_by_the_pods_events(cluster: Cluster, tmp_path: Path) -> None:
    cluster.shared.needs_embedded("its nodes refuse image volumes, as a kubelet without the feature does")
    with running_operator(cluster, tmp_path, *OPTION):
        cluster.apply(own_image(failurePolicy={"startupSeconds": 5}))
        cluster.eventually(lambda: status(cluster).get("phase") == "Failed", 60)
    refused = [one for one in cluster.items("events") if one["reason"] == "FailedMount"]
    assert 'MountVolume.SetUp failed for volume "trainmaster-agent"' in refused[0]["message"]
    assert "kubectl describe pod job-0" in condition(cluster, "Failed")["message"]
