"""Jobs that pass the custom resource's schema but can't run fail at once, and every view gives the reason.

They get no pods, so the tests also pass on an API server alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.operator_under_test import OperatorProcess, condition, status, training_job
from trainmaster_local.testing.clusters import Cluster

DTJ = Path(sys.executable).with_name("kubectl-dtj")
INVALID: dict[str, Any] = {"podTemplate": {"spec": {"restartPolicy": "Never"}}}
SENTENCE = "spec.podTemplate.spec.restartPolicy: 'Never' can't be set here"
# Huge pages without cpu or memory, which only the API server refuses.
HUGE_PAGES = {"limits": {"hugepages-2Mi": "4Mi"}}
UNFIT: dict[str, Any] = {"podTemplate": {"spec": {"containers": [{"name": "worker", "resources": HUGE_PAGES}]}}}


def dtj(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `kubectl dtj`, as a user calls it."""
    command = [DTJ, *arguments, "--namespace", cluster.namespace]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_a_spec_that_only_the_operator_can_refuse_fails_the_job_at_once(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(training_job("job", "pass", **INVALID)))
    cluster.kubectl("wait", "--for=condition=Failed", "dtj/job", "--timeout=60s")
    for kind in ("Failed", "Accepted", "Running"):
        shown = condition(cluster, kind)
        assert (shown["status"], shown["reason"]) == ("True" if kind == "Failed" else "False", "InvalidSpec")
        assert shown["message"].startswith(SENTENCE)
    assert status(cluster)["completionTime"]
    assert "InvalidSpec" in cluster.kubectl("get", "dtj", "job").stdout
    assert SENTENCE in cluster.kubectl("get", "dtj", "job", "-o", "wide").stdout
    waited = dtj(cluster, "wait", "job")
    assert waited.returncode == 1
    assert SENTENCE in waited.stdout + waited.stderr
    assert SENTENCE in dtj(cluster, "status", "job").stdout
    cluster.eventually(
        lambda: [event for event in cluster.items("events") if event["reason"] == "InvalidSpec"], 60, "its event"
    )
    # A corrected job stays failed; one sentence says what to do.
    corrected = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(training_job("job", "pass")), check=False)
    assert corrected.returncode == 1
    assert "delete the job and apply it again" in corrected.stderr
    cluster.kubectl("delete", "dtj", "job")
    cluster.apply(training_job("job", "pass"))
    cluster.eventually(lambda: cluster.items("statefulsets"), 60, "its set")


def test_such_a_job_is_deleted_when_its_time_to_live_is_over(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(training_job("job", "pass", **INVALID, runPolicy={"ttlSecondsAfterFinished": 1}))
    cluster.kubectl("wait", "--for=delete", "dtj/job", "--timeout=60s")


def test_a_set_that_the_api_server_refuses_as_invalid_fails_the_job_at_once(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(training_job("job", "pass", **UNFIT))
    cluster.kubectl("wait", "--for=condition=Failed", "dtj/job", "--timeout=60s")
    why = condition(cluster, "Failed")
    assert why["reason"] == "Refused"
    assert why["message"].startswith("apply StatefulSet job was refused (Invalid): ")
    assert "HugePages require cpu or memory" in why["message"]
    assert "startupSeconds" not in why["message"]


def test_a_field_that_the_cluster_is_too_old_for_is_named(cluster: Cluster, operator: OperatorProcess) -> None:
    """Fields of a newer Kubernetes are refused only after asking the API server, and a job with a field that it drops
    isn't started.
    """
    cluster.apply(training_job("job", "pass", podTemplate={"spec": {"newerField": {"a": 1}}}))
    cluster.kubectl("wait", "--for=condition=Failed", "dtj/job", "--timeout=60s")
    said = "spec.podTemplate.spec.newerField: unknown field; this Kubernetes has none of that name"
    assert said in condition(cluster, "Failed")["message"]
    assert not cluster.items("statefulsets")
