"""Pods of custom images mount the agent from a ConfigMap of their namespace (`writing.agent_config_maps`)."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from typing import Any

import pytest

from tests.cluster.operator_under_test import OperatorProcess, condition, status, training_job
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.rendering.agent_source import config_map_name

NAME = config_map_name(zipapp_bytes())
WAIT = "import time; time.sleep(600)"


def own_image(name: str, script: str) -> dict[str, Any]:
    return training_job(name, script, image="python:3.12")


def names(cluster: Cluster) -> list[str]:
    return [one["metadata"]["name"] for one in cluster.items("configmaps", labels="trainmaster.dev/content=agent")]


def delete(cluster: Cluster, *jobs: str) -> None:
    """Deletes jobs and their sets, because an API server without its controllers collects no garbage."""
    cluster.delete("dtj", *jobs)
    cluster.delete("statefulset", *jobs, missing_ok=True)


def until_condition_says(cluster: Cluster, words: str) -> str:
    return str(
        cluster.eventually(
            lambda: (message := condition(cluster, "Running").get("message", "")) and words in message and message,
            60,
            words,
        )
    )


def test_it_is_there_for_the_jobs_of_the_namespace_and_goes_with_the_last(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(own_image("job", WAIT), own_image("other", WAIT))
    cluster.eventually(lambda: len(cluster.items("statefulsets")) == 2)
    made = cluster.get("configmap", NAME)
    assert made["immutable"] is True
    assert base64.b64decode(made["binaryData"]["agent.pyz"]) == zipapp_bytes()
    assert "ownerReferences" not in made["metadata"]
    assert "finalizers" not in made["metadata"]
    for name in ("job", "other"):
        pod = cluster.get("statefulset", name)["spec"]["template"]["spec"]
        assert "initContainers" not in pod
        (volume,) = [one for one in pod["volumes"] if one["name"] == "trainmaster-agent"]
        assert volume["configMap"]["name"] == NAME
    delete(cluster, "job", "other")
    cluster.eventually(lambda: names(cluster) == [], 60, "its removal")


def test_an_operator_that_comes_back_removes_what_went_out_of_use_meanwhile(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(own_image("job", WAIT))
    cluster.eventually(lambda: cluster.items("statefulsets"))
    operator.kill()
    delete(cluster, "job")
    assert names(cluster) == [NAME]
    operator.start()
    cluster.eventually(lambda: names(cluster) == [], 60, "its removal")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"binaryData": {"agent.pyz": base64.b64encode(b"another program").decode()}}, "has other content than its"),
        ({"immutable": False}, "isn't immutable"),
    ],
    ids=["another program", "not immutable"],
)
def test_one_that_the_operator_has_not_made_is_not_run(
    cluster: Cluster, operator: OperatorProcess, changes: dict[str, Any], problem: str
) -> None:
    there = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "immutable": True,
        "binaryData": {"agent.pyz": base64.b64encode(zipapp_bytes()).decode()},
    }
    # Created rather than applied: half a megabyte is too much for the annotation of an apply.
    cluster.kubectl("create", "-f", "-", stdin=json.dumps({**there, **changes}))
    cluster.apply(own_image("job", "pass"))
    said = until_condition_says(cluster, problem)
    assert f"the ConfigMap '{NAME}' {problem}" in said
    assert "delete it: the operator makes it again" in said
    assert not cluster.items("statefulsets")
    cluster.delete("configmap", NAME)
    cluster.eventually(lambda: cluster.items("statefulsets"), 60, "its set")
    assert cluster.get("configmap", NAME)["immutable"] is True


def test_a_namespace_where_it_is_refused_says_so(cluster: Cluster, operator: OperatorProcess) -> None:
    policy, binding = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
    name = f"no-config-maps-{cluster.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    here = {"name": "here", "expression": f"request.namespace == '{cluster.namespace}'"}
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    cluster.apply(
        {
            **group,
            "kind": policy,
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [here],
                "validations": [{"expression": "false", "message": "no ConfigMaps in this namespace"}],
            },
        },
        {**group, "kind": binding, "spec": {"policyName": name, "validationActions": ["Deny"]}},
    )
    try:
        cluster.eventually(
            lambda: cluster.kubectl("create", "configmap", "any", "--dry-run=server", check=False).returncode, 60
        )
        cluster.apply(own_image("job", "pass"))
        said = until_condition_says(cluster, "no ConfigMaps in this namespace")
        assert f"the ConfigMap '{NAME}', from which pods have the agent, can't be made" in said
        assert not cluster.items("statefulsets")
        cluster.eventually(
            lambda: [one for one in cluster.items("events") if f"'{NAME}'" in one["message"]], 60, "its event"
        )
    finally:
        cluster.kubectl("delete", f"{policy},{binding}", name)
    cluster.eventually(lambda: cluster.items("statefulsets"), 90, "its set")


@pytest.mark.usefixtures("pods_run")
def test_pods_whose_agent_somebody_has_deleted_get_it_back(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.apply(own_image("job", WAIT))
    cluster.kubectl("wait", "--for=condition=Running", "dtj/job", "--timeout=60s")
    cluster.delete("configmap", NAME)
    uids = {pod["metadata"]["uid"] for pod in cluster.items("pods")}
    cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    cluster.eventually(lambda: _runs_again(cluster) and not _same(cluster, uids), 60, "new pods")
    assert names(cluster) == [NAME]


EVIL = """
import os, pathlib
pathlib.Path(os.environ["TRAINMASTER_TERMINATION_LOG"]).write_text("EVIL " + os.environ["TRAINMASTER_POD_NAME"])
print("EVIL")
"""


@pytest.mark.usefixtures("pods_run")
def test_whoever_may_only_write_config_maps_runs_nothing_in_a_jobs_pods(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(own_image("job", WAIT))
    cluster.kubectl("wait", "--for=condition=Running", "dtj/job", "--timeout=60s")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("__main__.py", EVIL)
    body = cluster.get("configmap", NAME)
    body["metadata"] = {"name": NAME, "labels": body["metadata"]["labels"]}
    body["binaryData"]["agent.pyz"] = base64.b64encode(archive.getvalue()).decode()
    cluster.delete("configmap", NAME)
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
    uids = {pod["metadata"]["uid"] for pod in cluster.items("pods")}
    cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    said = str(cluster.eventually(lambda: status(cluster)["phase"] == "Failed" and _why(cluster), 60, "its failure"))
    assert not _same(cluster, uids) and "EVIL" not in json.dumps(cluster.items("pods"))
    assert f"the ConfigMap {NAME} has another agent than the operator has put there, so it isn't run" in said


@pytest.mark.usefixtures("pods_run")
def test_a_training_that_names_a_mounted_path_is_read(cluster: Cluster, operator: OperatorProcess) -> None:
    """The loop compares it with a variable in the pods' environment."""
    spec = {
        "launcher": "exec",
        "command": ["python3", "-m", "trainloop", "--config", "/etc/trainmaster/training.yaml", "--print-config"],
        "training": {"epochs": 1, "batch": {"size": 8}, "checkpoint": {"path": "/checkpoints/here"}},
        "checkpoint": {"path": "/checkpoints", "volume": {"emptyDir": True}},
    }
    cluster.apply(training_job("job", "", workers=1, **spec))
    cluster.kubectl("wait", "--for=condition=Succeeded", "dtj/job", "--timeout=90s")


def _why(cluster: Cluster) -> str:
    """Returns the job's message about its end."""
    return str(condition(cluster, "Failed")["message"])


def _runs_again(cluster: Cluster) -> bool:
    """Returns whether the job runs again; each of the deleted pods may have ended an attempt."""
    found = status(cluster)
    return found["phase"] == "Running" and found["attempt"] > 1


def _same(cluster: Cluster, uids: set[str]) -> bool:
    return bool(uids & {pod["metadata"]["uid"] for pod in cluster.items("pods")})
