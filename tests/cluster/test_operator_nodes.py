"""Jobs lose nodes: the workers are replaced if there is room, are fewer if there is none, and come back later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_under_test import OperatorProcess, status, training_job
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

# Trains until the file that its argument names exists; prints its rank when it starts.
TRAIN = """
import os, pathlib, sys, time
me = os.environ
print("start", me["RANK"], "of", me["WORLD_SIZE"], "attempt", me["TRAINMASTER_ATTEMPT"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
QUICK = {"nodes": {"lostAfterSeconds": 2}, "maxRestarts": 0}


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Adds two nodes for this test alone, with two accelerators each."""
    names = [f"{cluster.namespace}-{index}" for index in range(2)]
    for name in names:
        config = NodeConfig(name=name, resources={"nvidia.com/gpu": 2}, labels={"for": cluster.namespace})
        cluster.embedded.call(cluster.embedded.cluster.add_node(config))
    yield names
    for name in names:
        cluster.embedded.call(cluster.embedded.cluster.remove_node(name))


def is_running(cluster: Cluster, attempt: int) -> bool:
    now = status(cluster)
    return now.get("phase") == "Running" and now.get("attempt", 0) >= attempt


def started(cluster: Cluster, worker: int) -> str:
    return cluster.log(f"job-{worker}", "worker")


def job(cluster: Cluster, end: Path, workers: int, **spec: Any) -> dict[str, Any]:
    made = training_job("job", TRAIN, workers=workers, failurePolicy=QUICK, **spec)
    made["spec"]["args"] = [str(end)]
    made["spec"]["podTemplate"] = {"spec": {"terminationGracePeriodSeconds": 3}}
    return made


def test_kubectl_scale_resizes_an_elastic_job(cluster: Cluster, operator: OperatorProcess, tmp_path: Path) -> None:
    here = cluster.shared.embedded is not None
    end = tmp_path / "end" if here else Path("/tmp/end")
    cluster.apply(job(cluster, end, 2, elastic={"minWorkers": 1, "maxWorkers": 3}))
    cluster.eventually(lambda: is_running(cluster, 1), 60, "two workers")
    cluster.scale("dtj", "job", 1)
    cluster.eventually(lambda: is_running(cluster, 2), 60, "one worker")
    cluster.eventually(lambda: "start 0 of 1 attempt 2" in started(cluster, 0), what="its start in its log")
    cluster.scale("dtj", "job", 3)
    cluster.eventually(lambda: is_running(cluster, 3), 60, "three workers")
    cluster.eventually(lambda: "start 2 of 3 attempt 3" in started(cluster, 2), what="its start in its log")
    now = status(cluster)
    assert (now["restarts"], now["disruptions"], now["workerOrder"]) == (0, 0, [0, 1, 2])
    if here:
        end.touch()
    else:
        # The pods see none of this machine's files. A rank that has ended may be gone at once.
        for worker in (0, 1, 2):
            cluster.kubectl("exec", f"job-{worker}", "-c", "worker", "--", "touch", str(end))
    cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")


def test_a_lost_nodes_workers_come_back_elsewhere(
    cluster: Cluster, operator: OperatorProcess, nodes: list[str], tmp_path: Path
) -> None:
    """The kubelet of a lost node never ends its pods, so the StatefulSet waits until they are deleted by force."""
    end = tmp_path / "end"
    made = job(cluster, end, 2, resources={"gpus": 1})
    made["spec"]["podTemplate"]["spec"]["nodeSelector"] = {"for": cluster.namespace}
    cluster.apply(made)
    cluster.eventually(lambda: is_running(cluster, 1), 60, "two workers")
    lost = cluster.get("pod", "job-0")["spec"]["nodeName"]
    cluster.embedded.call(cluster.embedded.cluster.lose_node(lost))
    cluster.eventually(lambda: is_running(cluster, 2), 60, "two workers elsewhere")
    now = status(cluster)
    assert (now["restarts"], now["disruptions"]) == (0, 1)
    assert now["failures"][0]["reason"] == "NodeLost"
    assert lost not in {pod["spec"]["nodeName"] for pod in cluster.items("pods")}
    end.touch()
    cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")


def test_an_elastic_job_does_with_fewer_until_there_is_room_again(
    cluster: Cluster, operator: OperatorProcess, nodes: list[str], tmp_path: Path
) -> None:
    end = tmp_path / "end"
    made = job(cluster, end, 3, elastic={"minWorkers": 2, "maxWorkers": 3}, resources={"gpus": 1})
    made["spec"]["podTemplate"]["spec"]["nodeSelector"] = {"for": cluster.namespace}
    cluster.apply(made)
    cluster.eventually(lambda: is_running(cluster, 1), 60, "three workers")
    cluster.embedded.call(cluster.embedded.cluster.lose_node(nodes[1]))
    cluster.eventually(lambda: is_running(cluster, 2), 60, "two workers")
    assert len(status(cluster)["workerOrder"]) == 2
    cluster.embedded.call(cluster.embedded.cluster.recover_node(nodes[1]))
    cluster.eventually(lambda: is_running(cluster, 3), 60, "three workers again")
    now = status(cluster)
    assert (now["workerOrder"], now["restarts"], now["disruptions"]) == ([0, 1, 2], 0, 1)
    end.touch()
    cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")
