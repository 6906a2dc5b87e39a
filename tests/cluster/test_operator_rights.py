"""Rights that the operator seldom needs are all used here, so that `tests/rights.py` can compare the chart with
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gang_schedulers import KUEUE, POD_GROUP, VOLCANO, definition, installed
from tests.cluster.operator_under_test import OperatorProcess, running_operator, training_job
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

PATIENT = "import time; time.sleep(600)"
HASH = "trainmaster.dev/rendered-hash"
GANGS = {
    "volcano": (VOLCANO,),
    "coscheduling": (definition("scheduling.x-k8s.io", "v1alpha1", "PodGroup", POD_GROUP),),
    "kubernetes": (
        definition(
            "scheduling.k8s.io",
            "v1alpha2",
            "PodGroup",
            {"schedulingPolicy": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        ),
    ),
    "kueue": KUEUE,
}


def hash_of(cluster: Cluster, resource: str, name: str = "job") -> str:
    return str(cluster.get(resource, name)["metadata"]["annotations"][HASH])


def rendered_anew(cluster: Cluster, resource: str, name: str = "job") -> None:
    """Makes an object look like another release's rendering, and waits until the operator has rendered it again."""
    rendered = hash_of(cluster, resource, name)
    cluster.kubectl("annotate", "--overwrite", resource, name, f"{HASH}=older")
    cluster.eventually(lambda: hash_of(cluster, resource, name) == rendered, 60, f"{resource} as rendered")


def test_a_release_that_renders_otherwise_writes_a_job_s_children_anew(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    job = training_job("job", PATIENT, training={"task": {"name": "text-classification"}})
    cluster.apply(job)
    for resource in ("service", "configmap", "statefulset"):
        name = "job-training" if resource == "configmap" else "job"
        cluster.eventually(lambda r=resource, n=name: hash_of(cluster, r, n), 60, f"the {resource}")
        rendered_anew(cluster, resource, name)


def test_a_job_s_network_policy_stands_before_its_pods_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ("--job-network-policies", "--operator-label=app=trainmaster", "--metrics-namespace=monitoring")
    with running_operator(cluster, tmp_path, *arguments):
        cluster.apply(training_job("job", PATIENT))
        cluster.eventually(lambda: len(cluster.items("pods")) == 2, 60, "two pods")
        policy, job = cluster.get("networkpolicy", "job"), cluster.get("dtj", "job")
        assert policy["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        versions = [int(one["metadata"]["resourceVersion"]) for one in (policy, *cluster.items("pods"))]
        assert versions[0] == min(versions)
        own, operator, metrics = policy["spec"]["ingress"]
        assert own == {"from": [{"podSelector": {"matchLabels": {"trainmaster.dev/job-uid": job["metadata"]["uid"]}}}]}
        assert operator["from"][0]["podSelector"] == {"matchLabels": {"app": "trainmaster"}}
        assert metrics["ports"] == [{"port": 8472, "protocol": "TCP"}]
        rendered_anew(cluster, "networkpolicy")
        cluster.kubectl("delete", "networkpolicy", "job")
        cluster.eventually(
            lambda: cluster.get("networkpolicy", "job")["spec"] == policy["spec"], 60, "the policy again"
        )


@pytest.mark.alone
@pytest.mark.parametrize("scheduler", GANGS)
def test_a_gang_s_object_is_made_written_anew_and_given_back(
    cluster: Cluster, operator: OperatorProcess, scheduler: str
) -> None:
    (group, *_) = GANGS[scheduler]
    resource = group["metadata"]["name"]
    priority: dict[str, Any] = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": cluster.namespace},
        "value": 7,
    }
    scheduling = {"gang": {"scheduler": scheduler}, "priorityClassName": cluster.namespace}
    if scheduler == "kueue":
        scheduling["queue"] = "team"
    with installed(cluster, *GANGS[scheduler]):
        cluster.apply(priority, training_job("job", PATIENT, scheduling=scheduling))
        cluster.eventually(lambda: hash_of(cluster, resource), 60, f"the {resource}")
        rendered_anew(cluster, resource)
        cluster.kubectl("patch", "dtj", "job", "--type=merge", "-p", '{"spec": {"runPolicy": {"suspend": true}}}')
        cluster.eventually(lambda: not cluster.items(resource), 60, "nothing is reserved")
    cluster.kubectl("delete", "priorityclass", cluster.namespace)
