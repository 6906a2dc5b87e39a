"""These tests use the embedded cluster, a real API server, or any cluster (docs/local-cluster.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from trainmaster_local.testing.clusters import SharedCluster, open_cluster, suite_config


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """Opens the session's cluster."""
    config = suite_config(tmp_path_factory.mktemp("cluster"))
    with open_cluster(config, os.environ.get("TRAINMASTER_TEST_KUBECONFIG")) as opened:
        yield opened
