"""The chart's admission policy against who holds the operator's token, on the API server itself.

The service account is made cluster-admin here, so what is refused is refused by the policy and by nothing else. It runs
on a kube-apiserver alone too (KUBEBUILDER_ASSETS).
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from tests.cluster.operator_under_test import install_crd, training_job
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace

CHART = Path(__file__).resolve().parents[2] / "charts" / "trainmaster"
MERGE, APPLY, JSON = "application/merge-patch+json", "application/apply-patch+yaml", "application/json-patch+json"
JOBS = "apis/trainmaster.dev/v1alpha1"
SETS = "apis/apps/v1"
# Not as the tests' operators are called: what is asked for here is none of their work (tests/rights.py).
ACCOUNT = "attacked"
LABEL = "trainmaster.dev/job-uid"


@dataclass(frozen=True)
class Answer:
    code: int
    body: dict[str, Any]

    @property
    def refused(self) -> bool:
        return self.code == 403 and "ValidatingAdmissionPolicy" in self.body["message"]


@dataclass(frozen=True)
class Operator:
    """Who holds the operator's token. `team` is a namespace with a job, `home` is the operator's own."""

    team: Cluster
    home: str
    job: dict[str, Any]

    def ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Answer:
        """A request as the operator's service account; `{ns}` in a path is the team's namespace, `{home}` its own."""
        shared = self.team.shared
        url = f"{shared.server}/{path.replace('{ns}', self.team.namespace).replace('{home}', self.home)}"
        headers = {**shared.headers, "Impersonate-User": f"system:serviceaccount:{self.home}:{ACCOUNT}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=30, context=shared.tls) as answer:
                return Answer(answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read()))

    def metadata(self, name: str, **changed: Any) -> dict[str, Any]:
        """Of a child of the job, as the operator renders it."""
        uid = self.job["metadata"]["uid"]
        owner = {
            "apiVersion": "trainmaster.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "name": self.job["metadata"]["name"],
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        labels = {LABEL: uid, "trainmaster.dev/job-name": self.job["metadata"]["name"]}
        return {"name": name, "labels": labels, "ownerReferences": [owner], **changed}

    @property
    def selector(self) -> dict[str, str]:
        """The labels that a child knows the job's pods by."""
        return {LABEL: self.job["metadata"]["uid"]}

    def stateful_set(self, name: str, *, replicas: int = 0, **metadata: Any) -> dict[str, Any]:
        template = {"metadata": {"labels": self.metadata(name)["labels"]}, "spec": {**_POD, "schedulerName": "nobody"}}
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
        about = {"apiVersion": JOBS.removeprefix("apis/"), "kind": "DistributedTrainingJob"}
        about |= {"name": self.job["metadata"]["name"], "uid": self.job["metadata"]["uid"]}
        about["namespace"] = self.team.namespace
        body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about}
        return {**body, "source": {"component": "trainmaster"}, "reason": "Test", "message": "m", **changed}


_POD: dict[str, Any] = {"containers": [{"name": "worker", "image": "local/python:test", "command": ["sleep", "600"]}]}
_SET = {
    "spec": {
        "replicas": 0,
        "serviceName": "job",
        "selector": {"matchLabels": {"app": "job"}},
        "template": {"metadata": {"labels": {"app": "job"}}, "spec": _POD},
    }
}


def config_map(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value"}}


def secret(name: str, **changed: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "trainmaster"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}}
    return {**body, "type": "trainmaster.dev/agents", **changed}


def lease(name: str) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


def pod(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    # No node, so it stays as it is.
    spec = {**_POD, "schedulerName": "nobody", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def policy_objects(home: str) -> list[dict[str, Any]]:
    with Chart.load(str(CHART)) as chart:
        values = {
            "admissionPolicy": {"enabled": True},
            "jobNetworkPolicies": {"enabled": True},
            "serviceAccount": {"name": ACCOUNT},
        }
        files = chart.render(values, name="trainmaster", namespace=home)
    return [one for one in yaml.safe_load_all(files["trainmaster/templates/admission-policy.yaml"]) if one]


@pytest.fixture(scope="module")
def operator(shared_cluster: SharedCluster) -> Iterator[Operator]:
    """The policy in force, and a team with a finished job, a worker of it, and things of the team's own."""
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
    labels = made.metadata("job")["labels"]
    team.kubectl("create", "-f", "-", stdin=yaml.safe_dump(made.stateful_set("job", replicas=1)))
    if team.shared.runs_pods:
        team.eventually(lambda: team.kubectl("get", "pod", "job-0", check=False).returncode == 0, what="the worker")
    else:
        controller = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "job", "controller": True}
        controller["uid"] = team.get("statefulset", "job")["metadata"]["uid"]
        worker = pod("job-0", {"labels": labels, "ownerReferences": [controller]})
        team.kubectl("create", "-f", "-", stdin=yaml.safe_dump(worker))
    team.kubectl("annotate", "pod", "job-0", "theirs=kept")
    finished = {**training_job("finished", "pass"), "status": {}}
    foreign = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "foreign"}, **_SET}
    for body in (
        pod("foreign", {"labels": {"app": "theirs"}}),
        # Labels alone make no worker.
        pod("lookalike", {"labels": made.metadata("job")["labels"]}),
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
    """A kube-apiserver takes a moment to see a new policy."""

    def in_force() -> bool:
        name = f"probe-{time.time_ns()}"
        return made.ask("POST", "api/v1/namespaces/{ns}/configmaps?dryRun=All", config_map({"name": name})).refused

    made.team.eventually(in_force, 30, "the policy is in force")


Make = Callable[[Operator], tuple[str, str, Any, str]]

ATTACKS: dict[str, Make] = {
    "patch a foreign pod's image": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/foreign",
        [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}],
        JSON,
    ),
    "patch its own worker's image": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}],
        JSON,
    ),
    "annotate a foreign pod": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/foreign",
        {"metadata": {"annotations": {"trainmaster.dev/assignment": "{}"}}},
        MERGE,
    ),
    "annotate a pod with a worker's labels": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/lookalike",
        {"metadata": {"annotations": {"trainmaster.dev/assignment": "{}"}}},
        MERGE,
    ),
    "write another's annotation on a worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "other"}}},
        MERGE,
    ),
    "change another's annotation on a worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"annotations": {"theirs": "mine"}}},
        MERGE,
    ),
    "remove another's annotation from a worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"annotations": {"theirs": None}}},
        MERGE,
    ),
    "label a worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"labels": {"a": "b"}}},
        MERGE,
    ),
    "make a foreign pod its worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/foreign",
        {"metadata": {"labels": o.metadata("x")["labels"], "ownerReferences": o.metadata("x")["ownerReferences"]}},
        MERGE,
    ),
    "delete a foreign pod": lambda o: ("DELETE", "api/v1/namespaces/{ns}/pods/foreign", None, JSON),
    "delete all pods": lambda o: (
        "DELETE",
        "api/v1/namespaces/{ns}/pods?fieldSelector=metadata.name=foreign",
        None,
        JSON,
    ),
    "create a pod": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/pods",
        pod("mine", o.metadata("mine")),
        "application/json",
    ),
    "evict a worker": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/pods/job-0/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "job-0"}},
        "application/json",
    ),
    "write a worker's status": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0/status",
        {"status": {"phase": "Succeeded"}},
        MERGE,
    ),
    "create a StatefulSet in kube-system": lambda o: (
        "POST",
        f"{SETS}/namespaces/kube-system/statefulsets",
        o.stateful_set("evil"),
        "application/json",
    ),
    "create a StatefulSet in its own namespace": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{home}}/statefulsets",
        o.stateful_set("evil"),
        "application/json",
    ),
    "create a StatefulSet without an owner": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        o.stateful_set("evil", ownerReferences=[]),
        "application/json",
    ),
    "create a StatefulSet of another owner": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        o.stateful_set("evil", ownerReferences=[{**o.metadata("x")["ownerReferences"][0], "kind": "Other"}]),
        "application/json",
    ),
    "create a StatefulSet with an owner that isn't its controller": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        o.stateful_set("evil", ownerReferences=[{**o.metadata("x")["ownerReferences"][0], "controller": False}]),
        "application/json",
    ),
    "create a StatefulSet whose label is another uid": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        o.stateful_set("evil", labels={LABEL: "another"}),
        "application/json",
    ),
    "create a StatefulSet by apply, without labels": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/evil?fieldManager=trainmaster&force=true",
        o.stateful_set("evil", labels={}),
        APPLY,
    ),
    "create a StatefulSet with a generated name": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        {**o.stateful_set("x"), "metadata": {"generateName": "evil-"}},
        "application/json",
    ),
    "adopt a foreign StatefulSet by apply": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/foreign?fieldManager=trainmaster&force=true",
        {**o.stateful_set("foreign"), **_SET},
        APPLY,
    ),
    "create a StatefulSet for foreign pods": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        {**o.stateful_set("foreign-pods"), **_SET},
        "application/json",
    ),
    "create a Service for foreign pods": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/services",
        o.service("evil", selector={"app": "theirs"}),
        "application/json",
    ),
    "create a Service with an address": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/services",
        o.service("evil", clusterIP="", ports=[{"port": 443}], externalIPs=["192.0.2.1"]),
        "application/json",
    ),
    "create a NetworkPolicy for foreign pods": lambda o: (
        "POST",
        "apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
        o.network_policy("evil", {}),
        "application/json",
    ),
    "let go of its own by removing the label": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/job",
        {"metadata": {"labels": {LABEL: None}}},
        MERGE,
    ),
    "let go of its own by removing the owner": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/job",
        {"metadata": {"ownerReferences": None}},
        MERGE,
    ),
    "give its own to another job": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/job",
        {
            "metadata": {
                "labels": {LABEL: "another"},
                "ownerReferences": [{**o.metadata("x")["ownerReferences"][0], "uid": "another"}],
            }
        },
        MERGE,
    ),
    "scale a foreign StatefulSet": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/foreign/scale",
        {"spec": {"replicas": 1}},
        MERGE,
    ),
    "delete a foreign ConfigMap": lambda o: ("DELETE", "api/v1/namespaces/{ns}/configmaps/foreign", None, JSON),
    "create a Secret of another type": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        secret("trainmaster-agents-1", type="Opaque"),
        "application/json",
    ),
    "create a Secret of another name": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        secret("other"),
        "application/json",
    ),
    "create an agents' Secret without its label": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        {**secret("x"), "metadata": {"name": "trainmaster-agents-1"}},
        "application/json",
    ),
    "create a service account's token": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        secret(
            "trainmaster-agents-2",
            type="kubernetes.io/service-account-token",
            metadata={
                "name": "trainmaster-agents-2",
                "annotations": {"kubernetes.io/service-account.name": "default"},
                "labels": {"app.kubernetes.io/managed-by": "trainmaster"},
            },
        ),
        "application/json",
    ),
    "change an agents' Secret": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/secrets/trainmaster-agents-0000000000",
        {"stringData": {"token": "mine"}},
        MERGE,
    ),
    "change a foreign Secret": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/secrets/foreign",
        {"stringData": {"token": "mine"}},
        MERGE,
    ),
    # Who rotates them is a person, with rights of their own.
    "change its signing keys": lambda o: (
        "PATCH",
        "api/v1/namespaces/{home}/secrets/trainmaster-signing-keys",
        {"stringData": {"key": "new"}},
        MERGE,
    ),
    "write signing keys elsewhere": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        secret("trainmaster-signing-keys", type="Opaque"),
        "application/json",
    ),
    "create a Lease elsewhere": lambda o: (
        "POST",
        "apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
        lease("trainmaster-operator"),
        "application/json",
    ),
    "create another Lease": lambda o: (
        "POST",
        "apis/coordination.k8s.io/v1/namespaces/{home}/leases",
        lease("other"),
        "application/json",
    ),
    "change a job's spec": lambda o: (
        "PATCH",
        f"{JOBS}/namespaces/{{ns}}/distributedtrainingjobs/job",
        {"spec": {"runPolicy": {"suspend": True}}},
        MERGE,
    ),
    "create a job": lambda o: (
        "POST",
        f"{JOBS}/namespaces/{{ns}}/distributedtrainingjobs",
        training_job("mine", "pass"),
        "application/json",
    ),
    "delete a job that hasn't ended": lambda o: (
        "DELETE",
        f"{JOBS}/namespaces/{{ns}}/distributedtrainingjobs/job",
        None,
        JSON,
    ),
    "tell an event about something else": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/events",
        o.event(
            "evil",
            involvedObject={"apiVersion": "v1", "kind": "Pod", "name": "foreign", "namespace": o.team.namespace},
        ),
        "application/json",
    ),
    "tell an event as somebody else": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/events",
        o.event("evil", source={"component": "kubelet"}),
        "application/json",
    ),
    "bind a role": lambda o: (
        "POST",
        "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "evil"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [],
        },
        "application/json",
    ),
    "ask for another service account's token": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/serviceaccounts/theirs/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}},
        "application/json",
    ),
    "connect to a pod": lambda o: ("GET", "api/v1/namespaces/{ns}/pods/foreign:8472/proxy/", None, JSON),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_operator_s_token_is_good_for_no_other_s_objects(operator: Operator, name: str) -> None:
    answer = operator.ask(*ATTACKS[name](operator))
    assert answer.refused, answer
    # It is the operator's own policy that says so, in a sentence.
    assert "Trainmaster's operator" in answer.body["message"]


WORK: dict[str, Make] = {
    "create a StatefulSet": lambda o: (
        "POST",
        f"{SETS}/namespaces/{{ns}}/statefulsets",
        o.stateful_set("job-second"),
        "application/json",
    ),
    "create a StatefulSet by apply": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/job-third?fieldManager=trainmaster&force=true",
        o.stateful_set("job-third"),
        APPLY,
    ),
    "change its own by apply": lambda o: (
        "PATCH",
        f"{SETS}/namespaces/{{ns}}/statefulsets/job?fieldManager=trainmaster&force=true",
        o.stateful_set("job", replicas=1, annotations={"trainmaster.dev/rendered-hash": "new"}),
        APPLY,
    ),
    "create a Service": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/services",
        o.service("job"),
        "application/json",
    ),
    "create a NetworkPolicy": lambda o: (
        "POST",
        "apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
        o.network_policy("job", {"matchLabels": o.selector}),
        "application/json",
    ),
    "add to a ConfigMap of its own": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/configmaps/job-logs",
        {"data": {"worker-0.log": "text"}},
        MERGE,
    ),
    "delete a child": lambda o: (
        "DELETE",
        "apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies/job",
        None,
        "application/json",
    ),
    "annotate a worker": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"annotations": {"trainmaster.dev/assignment": '{"attempt": 2}'}}},
        MERGE,
    ),
    "annotate a worker again": lambda o: (
        "PATCH",
        "api/v1/namespaces/{ns}/pods/job-0",
        {"metadata": {"annotations": {"trainmaster.dev/touched": "1"}}},
        MERGE,
    ),
    "write a job's status": lambda o: (
        "PATCH",
        f"{JOBS}/namespaces/{{ns}}/distributedtrainingjobs/job/status",
        {"metadata": {"uid": o.job["metadata"]["uid"]}, "status": {"phase": "Pending", "attempt": 1}},
        MERGE,
    ),
    "tell an event": lambda o: ("POST", "api/v1/namespaces/{ns}/events", o.event("job.1"), "application/json"),
    "count an event up": lambda o: ("PATCH", "api/v1/namespaces/{ns}/events/job.1", {"count": 2}, MERGE),
    "create the namespace's agents' Secret": lambda o: (
        "POST",
        "api/v1/namespaces/{ns}/secrets",
        secret("trainmaster-agents-0123456789"),
        "application/json",
    ),
    "create its signing keys": lambda o: (
        "POST",
        "api/v1/namespaces/{home}/secrets",
        secret("trainmaster-signing-keys", type="Opaque"),
        "application/json",
    ),
    "create its Lease": lambda o: (
        "POST",
        "apis/coordination.k8s.io/v1/namespaces/{home}/leases",
        lease("trainmaster-operator"),
        "application/json",
    ),
    "renew its Lease": lambda o: (
        "PATCH",
        "apis/coordination.k8s.io/v1/namespaces/{home}/leases/trainmaster-operator",
        {"spec": {"holderIdentity": "me"}},
        MERGE,
    ),
    "ask what it may do": lambda o: (
        "POST",
        "apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
        },
        "application/json",
    ),
    "delete a worker": lambda o: ("DELETE", "api/v1/namespaces/{ns}/pods/job-0", None, "application/json"),
}


def test_the_operator_s_work_is_let_through(operator: Operator) -> None:
    operator.team.kubectl("delete", "--namespace", operator.home, "secret", "trainmaster-signing-keys")
    # In this order: some need what those before made.
    answers = {name: operator.ask(*make(operator)) for name, make in WORK.items()}
    assert {name: answer for name, answer in answers.items() if answer.code >= 300} == {}


def test_a_job_goes_when_its_user_said_so_and_it_has_ended(operator: Operator) -> None:
    job = f"{JOBS}/namespaces/{{ns}}/distributedtrainingjobs/finished"
    ended = {"status": {"phase": "Succeeded"}}
    assert operator.ask("PATCH", f"{job}/status", ended, MERGE).code == 200
    # Nobody asked for it to go.
    assert operator.ask("DELETE", job).refused
    patch = json.dumps({"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}})
    operator.team.kubectl("patch", "dtj", "finished", "--type=merge", "-p", patch)
    assert operator.ask("DELETE", job).code == 200


def test_nobody_else_is_asked(operator: Operator) -> None:
    operator.team.kubectl("annotate", "pod", "foreign", "theirs=changed")
    operator.team.kubectl("label", "statefulset", "foreign", "theirs=changed")
