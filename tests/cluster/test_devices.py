"""Two workers that request one GPU each wait on a machine with one, and train once there is a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.operator_under_test import OperatorProcess, condition, running_operator, status, training_job
from trainmaster.client import JobClient
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

SHOW = "import os; print('rank', os.environ['RANK'], 'sees', os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture
def operator(cluster: Cluster, pods_run: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as started:
        yield started


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[list[NodeConfig]]:
    """Returns a function that adds nodes for this test alone, with one GPU each."""
    yield [
        NodeConfig(
            name=f"{cluster.namespace}-{device}",
            resources={"nvidia.com/gpu": (device,)},
            labels={"for": cluster.namespace},
        )
        for device in ("4", "7")
    ]
    for name in list(cluster.embedded.cluster.kubelets):
        if name.startswith(cluster.namespace):
            cluster.embedded.call(cluster.embedded.cluster.remove_node(name))


def test_two_workers_wait_for_a_second_gpu(
    cluster: Cluster, operator: OperatorProcess, machines: list[NodeConfig]
) -> None:
    first, second = machines
    cluster.embedded.call(cluster.embedded.cluster.add_node(first))
    template = {"spec": {"nodeSelector": {"for": cluster.namespace}}}
    cluster.apply(training_job("job", SHOW, resources={"gpus": 1}, podTemplate=template))
    cluster.eventually(lambda: condition(cluster, "Running").get("reason") == "Unschedulable", what="one to wait")
    assert "1 Insufficient nvidia.com/gpu" in condition(cluster, "Running")["message"]
    why = [sys.executable, "-m", "trainmaster.cli.main", "why", "job", "--namespace", cluster.namespace]
    done = subprocess.run(
        [*why, "--kubeconfig", str(cluster.kubeconfig)], capture_output=True, text=True, timeout=60, check=True
    )
    cause = "job is pending: the job needs 2 GPUs at once (2 workers of 1 each), and the 1 node that it may use has 1."
    assert done.stdout.splitlines()[0] == cause
    cluster.embedded.call(cluster.embedded.cluster.add_node(second))
    cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 60, "Succeeded")
    # The pods are removed after the job's end, so their output may be in the kept logs alone.
    lines = JobClient(cluster.namespace, kubeconfig=str(cluster.kubeconfig)).logs("job")
    assert sorted(line.split()[-1] for line in lines if " sees " in line) == ["4", "7"]
