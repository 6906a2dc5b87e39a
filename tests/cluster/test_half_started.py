"""A job that finds room only for a part of its workers reports that all along, and fails after startupSeconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.cluster.operator_under_test import OperatorProcess, training_job
from trainmaster_local.config import NodeConfig
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

STARTUP = 12


@pytest.fixture
def small_node(cluster: Cluster) -> Iterator[str]:
    """Adds a node of two cores, for this test alone."""
    node = NodeConfig(name=f"{cluster.namespace}-small", cpu="2", labels={"for": cluster.namespace})
    cluster.embedded.call(cluster.embedded.cluster.add_node(node))
    yield node.name
    cluster.embedded.call(cluster.embedded.cluster.remove_node(node.name))


def job_on(cluster: Cluster, script: str, **spec: Any) -> dict[str, Any]:
    job = training_job("job", script, workers=3, failurePolicy={"startupSeconds": STARTUP}, **spec)
    job["spec"]["resources"] = {"cpu": "1", "memory": "64Mi"}
    job["spec"]["podTemplate"] = {"spec": {"nodeSelector": {"for": cluster.namespace}}}
    return job


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_three_workers_where_two_fit_fail_in_time_with_the_schedulers_words(
    cluster: Cluster, operator: OperatorProcess, small_node: str
) -> None:
    cluster.apply(job_on(cluster, "print('never')"))
    # The output of `kubectl get`, each time that somebody looks.
    columns = 'jsonpath={.status.phase} {.status.attempt} {.status.conditions[?(@.type=="Running")].reason}'
    looked: list[list[str]] = []
    deadline = time.monotonic() + 4 * STARTUP
    while (not looked or looked[-1][:1] != ["Failed"]) and time.monotonic() < deadline:
        now = cluster.kubectl("get", "dtj", "job", "-o", columns).stdout.split()
        if now and (not looked or looked[-1] != now):
            looked.append(now)
        time.sleep(0.1)
    status = cluster.get("dtj", "job")["status"]
    why = next(one for one in status["conditions"] if one["type"] == "Failed")
    assert why["reason"] == "Unschedulable"
    assert f"within {STARTUP} s (startupSeconds)" in why["message"]
    assert "Insufficient cpu" in why["message"]
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    assert status["schedulingBackoffs"] >= 2, "it let others have its nodes meanwhile"
    assert STARTUP <= seconds(status["completionTime"]) - seconds(status["startTime"]) < STARTUP + 5
    reasons = [now[2] for now in looked]
    first = reasons.index("Unschedulable")
    assert set(reasons[first:]) == {"Unschedulable"}, "once it is known, it stays"


def test_an_elastic_job_that_can_do_with_two_starts_with_them(
    cluster: Cluster, operator: OperatorProcess, small_node: str
) -> None:
    cluster.apply(job_on(cluster, "print('trained')", elastic={"minWorkers": 2, "maxWorkers": 3}))
    cluster.kubectl("wait", "--for=condition=Succeeded", "dtj/job", "--timeout=90s")
    status = cluster.get("dtj", "job")["status"]
    assert len(status["workerOrder"]) == 2
    assert status["schedulingBackoffs"] == 0
