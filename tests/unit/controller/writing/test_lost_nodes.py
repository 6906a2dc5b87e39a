"""`writing.executor` reads a node from the API server before it deletes a pod by force."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import NODES
from trainmaster_operator.controller.writing.executor import is_lost

NOW = 1_795_233_600.0
LONG_AGO, JUST_NOW = "2026-11-21T03:59:00Z", "2026-11-21T03:59:50Z"


def node(ready: str = "True", since: str = LONG_AGO, *taints: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "", "name": "gpu-7", "uid": "n"},
        "spec": {"taints": list(taints)},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]},
    }


def unreachable(since: str) -> dict[str, Any]:
    return {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": since}


@pytest.mark.parametrize(
    ("live", "lost"),
    [
        pytest.param(None, True, id="the node object is gone"),
        pytest.param(node(), False, id="ready"),
        pytest.param(node("False"), False, id="not ready, but its kubelet answers"),
        pytest.param(node("Unknown", LONG_AGO), True, id="unknown for long"),
        pytest.param(node("Unknown", JUST_NOW, unreachable(JUST_NOW)), False, id="unreachable since a moment"),
        pytest.param(node("Unknown", LONG_AGO, unreachable(LONG_AGO)), True, id="unreachable for long"),
        pytest.param(node("True", LONG_AGO, unreachable(LONG_AGO)), False, id="a stale taint on a node that answers"),
        pytest.param(
            node("False", JUST_NOW, {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}),
            True,
            id="an administrator says so",
        ),
    ],
)
async def test_a_node_is_lost_when_it_is_surely_so(live: dict[str, Any] | None, lost: bool) -> None:
    cluster = FakeCluster()
    if live is not None:
        cluster.put(NODES, live)
    assert await is_lost(cluster, "gpu-7", lost_after=40, now=NOW) is lost
