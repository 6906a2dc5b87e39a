"""The conformance cases run against this cluster.

By default it is embedded and has no nodes, like the recording's. With KUBEBUILDER_ASSETS or TRAINMASTER_TEST_KUBECONFIG
it is the session's shared cluster (`trainmaster_local.testing.clusters.open_cluster`).
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainmaster_local.config import ClusterConfig
from trainmaster_local.embedded import LocalCluster
from trainmaster_local.testing.clusters import SharedCluster

RECORDED_MINOR = "36"


def skip_unless_recorded(version: Mapping[str, str]) -> None:
    """Skips if /version names another Kubernetes than the recorded one."""
    if version["minor"] != RECORDED_MINOR:
        pytest.skip(f"the answers are those of Kubernetes 1.{RECORDED_MINOR}, and this is {version['gitVersion']}")


@dataclass(frozen=True)
class Target:
    """Holds a cluster's address and the headers of an administrator's request, and knows whether controllers run."""

    server: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext
    controllers: bool = True


@asynccontextmanager
async def target(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Target]:
    if os.environ.get("KUBEBUILDER_ASSETS") or os.environ.get("TRAINMASTER_TEST_KUBECONFIG"):
        shared: SharedCluster = request.getfixturevalue("shared_cluster")
        yield Target(shared.server, shared.headers, shared.tls, shared.runs_pods)
        return
    async with LocalCluster(ClusterConfig(state_dir=folder, nodes=())) as cluster:
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster.authority).decode())
        yield Target(cluster.server, {"Authorization": f"Bearer {cluster.token}"}, tls)
