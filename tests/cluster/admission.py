"""The chart's admission policy is in force, and somebody who holds the operator's token sends requests.

The service account is made cluster-admin here, so only the policy can refuse a request. The tests also run on a
kube-apiserver alone (KUBEBUILDER_ASSETS). `{ns}` in a path is the namespace of a team with a job, `{home}` the
operator's own.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from tests.cluster.operator_under_test import install_crd, training_job
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace

CHART = Path(__file__).resolve().parents[2] / "charts" / "trainmaster"
# The name differs from that of the tests' operators: these requests are none of their work (tests/rights.py).
ACCOUNT = "attacked"
LABEL = "trainmaster.dev/job-uid"
NAMESPACE_LABEL = "trainmaster.dev/jobs"

PODS = "api/v1/namespaces/{ns}/pods"
SERVICES = "api/v1/namespaces/{ns}/services"
CONFIG_MAPS = "api/v1/namespaces/{ns}/configmaps"
EVENTS = "api/v1/namespaces/{ns}/events"
SECRETS, HOME_SECRETS = "api/v1/namespaces/{ns}/secrets", "api/v1/namespaces/{home}/secrets"
HOME_LEASES = "apis/coordination.k8s.io/v1/namespaces/{home}/leases"
NETWORK_POLICIES = "apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies"
SETS = "apis/apps/v1/namespaces/{ns}/statefulsets"
JOBS = "apis/trainmaster.dev/v1alpha1/namespaces/{ns}/distributedtrainingjobs"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"


def get(path: str) -> Request:
    return Request("GET", path)


def post(path: str, body: dict[str, Any]) -> Request:
    return Request("POST", path, body)


def merge(path: str, body: dict[str, Any]) -> Request:
    return Request("PATCH", path, body, "application/merge-patch+json")


def json_patch(path: str, body: list[dict[str, Any]]) -> Request:
    return Request("PATCH", path, body, "application/json-patch+json")


def apply(path: str, body: dict[str, Any]) -> Request:
    """Returns a server-side apply by the operator's field manager."""
    return Request("PATCH", f"{path}?fieldManager=trainmaster&force=true", body, "application/apply-patch+yaml")


def delete(path: str) -> Request:
    return Request("DELETE", path)


@dataclass(frozen=True)
class Answer:
    code: int
    body: dict[str, Any]

    @property
    def refused(self) -> bool:
        return self.code == 403 and "ValidatingAdmissionPolicy" in self.body["message"]


@dataclass(frozen=True)
class Operator:
    """Sends requests with the operator's token. `team` is a namespace with a job, `home` is the operator's own."""

    team: Cluster
    home: str
    job: dict[str, Any]

    def ask(self, request: Request) -> Answer:
        """Sends a request as the operator's service account."""
        shared = self.team.shared
        url = f"{shared.server}/{request.path.replace('{ns}', self.team.namespace).replace('{home}', self.home)}"
        headers = {**shared.headers, "Impersonate-User": f"system:serviceaccount:{self.home}:{ACCOUNT}"}
        data = None if request.body is None else json.dumps(request.body).encode()
        sent = urllib.request.Request(url, data=data, method=request.method, headers=headers)
        sent.add_header("Content-Type", request.content_type)
        try:
            with urllib.request.urlopen(sent, timeout=30, context=shared.tls) as answer:
                return Answer(answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read()))

    def owner(self, **changed: Any) -> dict[str, Any]:
        """Returns the reference by which a child names the job as its owner."""
        owner = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob", "controller": True}
        owner |= {"name": self.job["metadata"]["name"], "uid": self.job["metadata"]["uid"], "blockOwnerDeletion": True}
        return {**owner, **changed}

    def config_map_owner(self) -> dict[str, Any]:
        """Returns a reference to an existing object that would keep a child from being garbage-collected."""
        found = self.team.get("configmap", "foreign")["metadata"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": found["name"], "uid": found["uid"]}

    @property
    def selector(self) -> dict[str, str]:
        """Returns the labels by which a child selects the job's pods."""
        return {LABEL: self.job["metadata"]["uid"]}

    @property
    def labels(self) -> dict[str, str]:
        """Returns the labels of the job's children."""
        return {**self.selector, "trainmaster.dev/job-name": self.job["metadata"]["name"]}

    def metadata(self, name: str, **changed: Any) -> dict[str, Any]:
        """Returns a child's metadata, as the operator renders it."""
        return {"name": name, "labels": self.labels, "ownerReferences": [self.owner()], **changed}

    def stateful_set(self, name: str, *, replicas: int = 0, **metadata: Any) -> dict[str, Any]:
        template = {"metadata": {"labels": self.labels}, "spec": {**_POD, "schedulerName": "nobody"}}
        spec = {"replicas": replicas, "serviceName": "job", "selector": {"matchLabels": self.selector}}
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": self.metadata(name, **metadata)}
        return {**body, "spec": {**spec, "template": template}}

    def service(self, name: str, **spec: Any) -> dict[str, Any]:
        spec = {"clusterIP": "None", "selector": self.selector, **spec}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(name), "spec": spec}

    def network_policy(self, name: str, selector: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": self.metadata(name)}
        return {**body, "spec": {"podSelector": selector, "policyTypes": ["Ingress"]}}

    def event(self, name: str, **changed: Any) -> dict[str, Any]:
        about = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob"}
        about |= {"name": self.job["metadata"]["name"], "uid": self.job["metadata"]["uid"]}
        about["namespace"] = self.team.namespace
        body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about}
        return {**body, "source": {"component": "trainmaster"}, "reason": "Test", "message": "m", **changed}


_POD: dict[str, Any] = {"containers": [{"name": "worker", "image": "local/python:test", "command": ["sleep", "600"]}]}
FOREIGN_SET = {
    "spec": {
        "replicas": 0,
        "serviceName": "job",
        "selector": {"matchLabels": {"app": "job"}},
        "template": {"metadata": {"labels": {"app": "job"}}, "spec": _POD},
    }
}


def config_map(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value"}}


def agent(name: str = f"trainmaster-agent-{'0123456789abcdef' * 4}", **changed: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "trainmaster", "trainmaster.dev/content": "agent"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "immutable": True}
    return {**body, "binaryData": {"agent.pyz": "UEs="}, **changed}


def secret(name: str, **changed: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "trainmaster"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}}
    return {**body, "type": "trainmaster.dev/agents", **changed}


def lease(name: str) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


def pod(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    # No node, so its status stays unchanged.
    spec = {**_POD, "schedulerName": "nobody", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def policy_objects(home: str) -> list[dict[str, Any]]:
    with Chart.load(str(CHART)) as chart:
        values = {
            "admissionPolicy": {"enabled": True, "namespaceLabel": NAMESPACE_LABEL},
            "jobNetworkPolicies": {"enabled": True},
            "serviceAccount": {"name": ACCOUNT},
        }
        files = chart.render(values, name="trainmaster", namespace=home)
    return [one for one in yaml.safe_load_all(files["trainmaster/templates/admission-policy.yaml"]) if one]


def annotated(annotations: dict[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


@contextmanager
def policy_in_force(shared_cluster: SharedCluster) -> Iterator[Operator]:
    """Puts the policy in force; makes a team with two jobs, a worker of one of them, and the team's own objects."""
    with new_namespace(shared_cluster) as team, new_namespace(shared_cluster) as home:
        install_crd(team)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
        home.apply(account)
        binding = f"{home.namespace}-admin"
        subject = f"--serviceaccount={home.namespace}:{ACCOUNT}"
        home.kubectl("create", "clusterrolebinding", binding, "--clusterrole=cluster-admin", subject)
        objects = policy_objects(home.namespace)
        home.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        try:
            team.kubectl("label", "namespace", team.namespace, f"{NAMESPACE_LABEL}=true")
            team.apply(training_job("job", "pass"))
            made = Operator(team, home.namespace, team.get("dtj", "job"))
            _populate(made)
            _wait_until_in_force(made)
            yield made
        finally:
            for one in reversed(objects):
                home.kubectl("delete", one["kind"].lower(), one["metadata"]["name"], "--ignore-not-found")
            home.kubectl("delete", "clusterrolebinding", binding, "--ignore-not-found")


def _populate(made: Operator) -> None:
    team = made.team
    team.kubectl("create", "-f", "-", stdin=yaml.safe_dump(made.stateful_set("job", replicas=1)))
    if team.shared.runs_pods:
        team.eventually(lambda: team.get("pod", "job-0"), what="the worker")
    else:
        controller = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "job", "controller": True}
        controller["uid"] = team.get("statefulset", "job")["metadata"]["uid"]
        worker = pod("job-0", {"labels": made.labels, "ownerReferences": [controller]})
        team.kubectl("create", "-f", "-", stdin=yaml.safe_dump(worker))
    team.kubectl("annotate", "pod", "job-0", "theirs=kept")
    finished = {**training_job("finished", "pass"), "status": {}}
    foreign = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "foreign"}, **FOREIGN_SET}
    for body in (
        pod("foreign", {"labels": {"app": "theirs"}}),
        # Labels alone don't make a worker.
        pod("lookalike", {"labels": made.labels}),
        foreign,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "theirs"}},
        config_map({"name": "foreign"}),
        config_map(made.metadata("job-logs")),
        secret("foreign", type="Opaque"),
        secret("trainmaster-agents-0000000000"),
        finished,
    ):
        team.kubectl("create", "-f", "-", stdin=yaml.safe_dump(body))
    keys = secret("trainmaster-signing-keys", type="Opaque")
    team.kubectl("create", "--namespace", made.home, "-f", "-", stdin=yaml.safe_dump(keys))


def _wait_until_in_force(made: Operator) -> None:
    """Waits until the policy is in force: a kube-apiserver takes a moment to see a new one."""

    def in_force() -> bool:
        name = f"probe-{time.time_ns()}"
        return made.ask(post(f"{CONFIG_MAPS}?dryRun=All", config_map({"name": name}))).refused

    made.team.eventually(in_force, 30, "the policy is in force")
