"""These tests share a cluster with Trainmaster's images and its operator's account, and one operator for all scenarios.

docs/local-cluster.md explains how to choose the cluster. The fixture `cluster` gives a test its own namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.cluster import operator_account
from trainmaster.local import configure
from trainmaster_local.testing.clusters import SharedCluster, new_namespace, open_cluster, suite_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.operator_under_test import OperatorProcess
    from tests.cluster.scenarios import Scenario, Stage
    from trainmaster_local.testing.clusters import Cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """Opens the session's cluster."""
    config = replace(
        configure(suite_config(tmp_path_factory.mktemp("cluster"))), authorizer=operator_account.authorizer
    )
    with open_cluster(config, os.environ.get("TRAINMASTER_TEST_KUBECONFIG")) as opened:
        try:
            yield opened
        finally:
            operator_account.remove_account(opened.kubeconfig)


@pytest.fixture(scope="session")
def stage(shared_cluster: SharedCluster, pods_run: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Starts one operator for all scenarios of tests/cluster/test_failures_*.py, because starting one takes as long as
    many a scenario.
    """
    from tests.cluster.scenarios import new_stage

    with ExitStack() as stack:
        namespaces = [stack.enter_context(new_namespace(shared_cluster)) for _ in range(2)]
        yield stack.enter_context(new_stage(namespaces[0], namespaces[1], tmp_path_factory.mktemp("stage")))


@pytest.fixture
def scenario(stage: Stage) -> Iterator[Scenario]:
    """Makes a job that a test breaks; its pods are deleted soon after the test."""
    with stage.scenario() as made:
        yield made


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Starts an operator for the test's own namespace."""
    from tests.cluster.operator_under_test import running_operator

    with running_operator(cluster, tmp_path) as process:
        yield process
