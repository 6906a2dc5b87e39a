"""An API server accepts the custom resource, fills in defaults, refuses invalid jobs, and shows the main fields.

It also accepts the objects that jobs are rendered to.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.cluster.operator_under_test import apply_crd, install_crd
from tests.unit.rendering.goldens import JOBS, NAMES, manifests
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL, VERSION


@pytest.fixture
def with_crd(cluster: Cluster) -> Cluster:
    install_crd(cluster)
    return cluster


def job(name: str, spec: dict[str, Any]) -> str:
    return yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec})


def test_applying_the_definition_again_changes_nothing(with_crd: Cluster) -> None:
    """The API server stores exactly what the manifest contains: it drops no default or field."""

    def version() -> str:
        return str(with_crd.get("crd", f"{PLURAL}.{GROUP}")["metadata"]["resourceVersion"])

    before = version()
    apply_crd(with_crd)
    assert version() == before


def test_it_is_accepted_by_the_api_servers_own_checks(with_crd: Cluster) -> None:
    conditions = with_crd.get("crd", f"{PLURAL}.{GROUP}")["status"]["conditions"]
    assert {one["type"]: one["status"] for one in conditions if one["type"] != "NonStructuralSchema"} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert not [one for one in conditions if one["type"] == "NonStructuralSchema"]


def test_defaults_are_filled_in(with_crd: Cluster) -> None:
    with_crd.kubectl("apply", "-f", "-", stdin=job("defaults", {"workers": 1, "failurePolicy": {"hang": {}}}))
    spec = with_crd.get("dtj", "defaults")["spec"]
    assert (spec["launcher"], spec["backend"], spec["processesPerWorker"]) == ("torchrun", "auto", "auto")
    assert spec["runPolicy"] == {"suspend": False, "keepPods": "None", "keepLogs": True}
    assert spec["failurePolicy"]["backoff"] == {"initialSeconds": 0, "factor": 2, "maxSeconds": 300}
    assert spec["failurePolicy"]["hang"] == {"action": "Restart"}
    assert "resources" not in spec


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a misspelled field": ("job", {"wokers": 2}, 'unknown field "spec.wokers"'),
    "zero workers": ("job", {"workers": 0}, "spec.workers: Invalid value: 0"),
    "a fraction of a GPU": ("job", {"workers": 1, "resources": {"gpus": 0.5}}, "spec.resources.gpus"),
    "an unknown launcher": ("job", {"workers": 1, "launcher": "mpi"}, 'spec.launcher: Unsupported value: "mpi"'),
    "workers and groups": (
        "job",
        {"workers": 2, "workerGroups": [{"name": "a", "workers": 1}]},
        "2 can't be combined with spec.workerGroups; remove spec.workers, or make it a group",
    ),
    "groups of one name": (
        "job",
        {"workerGroups": [{"name": "a", "workers": 1}, {"name": "a", "workers": 2}]},
        "spec.workerGroups[1]: Duplicate value",
    ),
    "a missing command": (
        "job",
        {"workers": 1, "image": "me/x:1"},
        "is missing, and the image 'me/x:1' has no program that Trainmaster knows",
    ),
    "a variable that isn't text": (
        "job",
        {
            "workers": 1,
            "podTemplate": {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": 4}]}]}},
        },
        'spec.podTemplate.spec.containers[0].env[0].value: Invalid value: "integer"',
    ),
    "tolerations as a mapping": (
        "job",
        {"workers": 1, "podTemplate": {"spec": {"tolerations": {"key": "x"}}}},
        'spec.podTemplate.spec.tolerations: Invalid value: "object"',
    ),
    "a name too long": ("x" * 53, {"workers": 1}, "has 53 characters, and the labels of its pods leave room for 52"),
    "a queue of nobody": (
        "job",
        {"workers": 1, "scheduling": {"queue": "team-a"}},
        "'team-a' has no scheduler that knows queues; set gang.scheduler to volcano or kueue, or remove it",
    ),
}


@pytest.mark.parametrize(("name", "spec", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cant_run_is_refused_at_apply(with_crd: Cluster, name: str, spec: dict[str, Any], said: str) -> None:
    done = with_crd.kubectl("apply", "-f", "-", stdin=job(name, spec), check=False)
    assert done.returncode == 1
    assert said in done.stderr


def test_what_merging_takes_and_newer_fields_pass_the_podtemplates_schema(with_crd: Cluster) -> None:
    container = {
        "name": "worker",
        "env": [{"name": "A", "value": None}, {"name": "B", "$patch": "delete"}],
        "resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}, "requests": None},
        "newerField": {"a": [1]},
    }
    pod = {
        "containers": [container],
        "nodeSelector": {"$patch": "replace", "a": "b"},
        "securityContext": {"$patch": "delete"},
        "tolerations": None,
        "volumes": [{"$patch": "replace"}, {"name": "d", "newerSource": {}}],
    }
    with_crd.kubectl(
        "apply", "--server-side", "-f", "-", stdin=job("open", {"workers": 1, "podTemplate": {"spec": pod}})
    )
    assert with_crd.get("dtj", "open")["spec"]["podTemplate"]["spec"] == pod
    assert "nodeSelector" in with_crd.kubectl("explain", "dtj.spec.podTemplate.spec").stdout
    assert "value\t<string>" in with_crd.kubectl("explain", "dtj.spec.podTemplate.spec.containers.env").stdout


def test_a_running_jobs_pods_cant_be_changed_but_its_policies_can(with_crd: Cluster) -> None:
    with_crd.kubectl("apply", "-f", "-", stdin=job("fixed", {"workers": 1, "training": {"lr": 1}}))
    refused = with_crd.kubectl(
        "patch", "dtj", "fixed", "--type=merge", "-p", '{"spec":{"training":{"lr":2}}}', check=False
    )
    assert "spec.training: Forbidden: can't be changed once the job exists" in refused.stderr
    scaled = with_crd.kubectl("scale", "dtj", "fixed", "--replicas=3", check=False)
    assert "can't be changed, because the job isn't elastic" in scaled.stderr
    with_crd.kubectl("patch", "dtj", "fixed", "--type=merge", "-p", '{"spec":{"runPolicy":{"suspend":true}}}')
    assert with_crd.get("dtj", "fixed")["spec"]["runPolicy"]["suspend"] is True


def test_kubectl_get_answers_at_a_glance(with_crd: Cluster) -> None:
    with_crd.kubectl("apply", "-f", "-", stdin=job("glance", {"workers": 2}))
    status = {
        "phase": "Running",
        "conditions": [{"type": "Running", "status": "True", "reason": "AllRanksUp"}],
        "attempt": 3,
        "restarts": 2,
        "workers": {"desired": 2, "running": 2},
        "progress": {"step": 120, "totalSteps": 1000, "loss": 0.25},
        "failures": [
            {"attempt": 2, "reason": "OOMKilled", "failedAt": ""},
            {"attempt": 1, "reason": "Error", "failedAt": ""},
        ],
        "writtenByANewerOperator": {"kept": True},
    }
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{with_crd.namespace}/{PLURAL}/glance/status"
    code, stored = with_crd.request("PATCH", path, {"status": status}, "application/merge-patch+json")
    assert code == 200, stored
    assert stored["status"]["writtenByANewerOperator"] == {"kept": True}
    header, row = with_crd.kubectl("get", "dtj", "glance").stdout.splitlines()
    assert header.split() == [
        "NAME",
        "PHASE",
        "REASON",
        "ATTEMPT",
        "RESTARTS",
        "WORKERS",
        "RUNNING",
        "STEP",
        "TOTAL",
        "LOSS",
        "AGE",
    ]
    assert row.split()[:10] == ["glance", "Running", "AllRanksUp", "3", "2", "2", "2", "120", "1000", "0.25"]
    header, row = with_crd.kubectl("get", "dtj", "glance", "-o", "wide").stdout.splitlines()
    assert "OOMKilled" in row and "FAILURE" in header


def test_kubectl_explain_shows_what_a_field_is_for(with_crd: Cluster) -> None:
    shown = with_crd.kubectl("explain", "dtj.spec.failurePolicy.hang.progressSeconds").stdout
    assert "Seconds without a new step until a job counts as hung." in " ".join(shown.split())


def test_jobs_and_their_children_are_accepted(with_crd: Cluster) -> None:
    """Nothing is created: this tests the API server's own defaults and validation, pods' templates included.

    PodGroups and Workloads are types of other projects, which test_gangs.py installs.
    """
    jobs = [job(name, yaml.safe_load((JOBS / f"{name}.yaml").read_text())) for name in NAMES]
    with_crd.kubectl("create", "--dry-run=server", "-f", "-", stdin="---\n".join(jobs))
    rendered = [json.loads(json.dumps(child.body)) for name in NAMES for child in manifests(name)]
    children = [child for child in rendered if child["kind"] not in ("PodGroup", "Workload")]
    assert {child["kind"] for child in children} == {"Service", "ConfigMap", "NetworkPolicy", "StatefulSet"}
    for child in children:
        child["metadata"]["namespace"] = with_crd.namespace
    done = with_crd.kubectl(
        "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(children), timeout=120
    )
    assert len(done.stdout.splitlines()) == len(children)
