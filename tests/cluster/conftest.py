"""A cluster for tests: the embedded one, a real API server, or any cluster.

`cluster` gives each test a namespace of its own in a cluster that the whole session shares:

- by default the embedded local cluster, on a thread of this process (`cluster.embedded` reaches faults and nodes);
- with KUBEBUILDER_ASSETS the kube-apiserver and etcd in that folder: no controllers and no nodes, so tests that need
  pods to run are skipped there;
- with TRAINMASTER_TEST_KUBECONFIG the cluster of that kubeconfig's current context (kind, in the workflow file).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import operator_account
from trainmaster.cli.local_images import configure
from trainmaster_local.config import ClusterConfig, KubeletTimings, NodeConfig, NodeTimings
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace, open_cluster

if TYPE_CHECKING:
    from tests.cluster.scenarios import Scenario, Stage

# A twentieth of Kubernetes' back-off: 10 s become 0.5 s, in the same order and with the same messages.
BACKOFF_SCALE = 0.05


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below this folder needs a cluster."""
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """The session's cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    kubeconfig, assets = os.environ.get("TRAINMASTER_TEST_KUBECONFIG"), os.environ.get("KUBEBUILDER_ASSETS")
    config = configure(
        ClusterConfig(
            state_dir=folder,
            nodes=(NodeConfig(cpu="64", memory="64Gi", pods=1000, resources={"nvidia.com/gpu": 8}),),
            kubelet=KubeletTimings(backoff_scale=BACKOFF_SCALE),
            node_timings=NodeTimings(
                lease_seconds=0.5, monitor_grace_seconds=2.0, monitor_seconds=0.25, orphan_seconds=1.0
            ),
            authorizer=operator_account.authorizer,
        )
    )
    with open_cluster(
        config, kubeconfig=Path(kubeconfig) if kubeconfig else None, assets=Path(assets) if assets else None
    ) as opened:
        try:
            yield opened
        finally:
            operator_account.remove_account(opened.kubeconfig)


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[Cluster]:
    """The shared cluster, in a namespace of the test's own."""
    with new_namespace(shared_cluster) as made:
        yield made


@pytest.fixture
def pods_run(shared_cluster: SharedCluster) -> None:
    """For tests whose pods have to run."""
    if not shared_cluster.runs_pods:
        pytest.skip("a kube-apiserver alone runs no pods")


@pytest.fixture(scope="session")
def stage(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One operator for all scenarios of tests/cluster/test_failures_*.py: starting one for each takes as long as many a
    scenario."""
    from tests.cluster.scenarios import new_stage

    if not shared_cluster.runs_pods:
        pytest.skip("a kube-apiserver alone runs no pods")
    with ExitStack() as stack:
        namespaces = [stack.enter_context(new_namespace(shared_cluster)) for _ in range(2)]
        yield stack.enter_context(new_stage(namespaces[0], namespaces[1], tmp_path_factory.mktemp("stage")))


@pytest.fixture
def scenario(stage: Stage) -> Iterator[Scenario]:
    """A job that a test breaks; its pods are gone soon after the test."""
    with stage.scenario() as made:
        yield made
