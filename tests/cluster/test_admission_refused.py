"""The chart's admission policy refuses everything that isn't the operator's work to anyone who holds its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.admission import (
    CONFIG_MAPS,
    EVENTS,
    FOREIGN_SET,
    HOME_LEASES,
    HOME_SECRETS,
    JOBS,
    LABEL,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    SETS,
    Operator,
    Request,
    agent,
    annotated,
    apply,
    delete,
    get,
    json_patch,
    lease,
    merge,
    pod,
    policy_in_force,
    post,
    secret,
)
from tests.cluster.operator_under_test import training_job
from trainmaster_local.testing.clusters import SharedCluster

JOB_NAME = "trainmaster.dev/job-name"


def ghosts(o: Operator, *owners: dict[str, Any]) -> dict[str, Any]:
    """Returns pods that take over their node, for a job that nobody has made."""
    invented = o.owner(name="ghost", uid="ghost")
    body = o.stateful_set("ghost", labels={LABEL: "ghost", JOB_NAME: "ghost"}, ownerReferences=[invented, *owners])
    body["spec"]["selector"]["matchLabels"] = {LABEL: "ghost"}
    template = body["spec"]["template"]
    template["metadata"]["labels"] = {LABEL: "ghost"}
    template["spec"] = {**template["spec"], "hostPID": True, "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    return body


EVIL_IMAGE = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
ATTACKS: Mapping[str, Callable[[Operator], Request]] = {
    "patch a foreign pod's image": lambda _: json_patch(f"{PODS}/foreign", EVIL_IMAGE),
    "patch its own worker's image": lambda _: json_patch(f"{PODS}/job-0", EVIL_IMAGE),
    "annotate a foreign pod": lambda _: merge(f"{PODS}/foreign", annotated({"trainmaster.dev/assignment": "{}"})),
    "annotate a pod with a worker's labels": lambda _: merge(
        f"{PODS}/lookalike", annotated({"trainmaster.dev/assignment": "{}"})
    ),
    "write another's annotation on a worker": lambda _: merge(
        f"{PODS}/job-0", annotated({"k8s.v1.cni.cncf.io/networks": "other"})
    ),
    "change another's annotation on a worker": lambda _: merge(f"{PODS}/job-0", annotated({"theirs": "mine"})),
    "remove another's annotation from a worker": lambda _: merge(f"{PODS}/job-0", annotated({"theirs": None})),
    "label a worker": lambda _: merge(f"{PODS}/job-0", {"metadata": {"labels": {"a": "b"}}}),
    "make a foreign pod its worker": lambda o: merge(
        f"{PODS}/foreign", {"metadata": {"labels": o.labels, "ownerReferences": [o.owner()]}}
    ),
    "delete a foreign pod": lambda _: delete(f"{PODS}/foreign"),
    "delete all pods": lambda _: delete(f"{PODS}?fieldSelector=metadata.name=foreign"),
    "create a pod": lambda o: post(PODS, pod("mine", o.metadata("mine"))),
    "evict a worker": lambda _: post(
        f"{PODS}/job-0/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "job-0"}}
    ),
    "write a worker's status": lambda _: merge(f"{PODS}/job-0/status", {"status": {"phase": "Succeeded"}}),
    "create a StatefulSet in kube-system": lambda o: post(
        SETS.replace("{ns}", "kube-system"), o.stateful_set("job-evil")
    ),
    "create a StatefulSet in its own namespace": lambda o: post(
        SETS.replace("{ns}", "{home}"), o.stateful_set("job-evil")
    ),
    "create a StatefulSet without an owner": lambda o: post(SETS, o.stateful_set("job-evil", ownerReferences=[])),
    "create a StatefulSet of another owner": lambda o: post(
        SETS, o.stateful_set("job-evil", ownerReferences=[o.owner(kind="Other")])
    ),
    "create a StatefulSet with an owner that isn't its controller": lambda o: post(
        SETS, o.stateful_set("job-evil", ownerReferences=[o.owner(controller=False)])
    ),
    "create a StatefulSet with a second owner": lambda o: post(
        SETS, o.stateful_set("job-evil", ownerReferences=[o.owner(), o.config_map_owner()])
    ),
    "create a StatefulSet of an invented job with a second owner": lambda o: post(
        SETS, ghosts(o, o.config_map_owner())
    ),
    "create a StatefulSet of an invented job where nobody may train": lambda o: post(
        SETS.replace("{ns}", "default"), ghosts(o)
    ),
    "create an agent where nobody may train": lambda _: post(CONFIG_MAPS.replace("{ns}", "default"), agent()),
    "create an agents' Secret where nobody may train": lambda _: post(
        SECRETS.replace("{ns}", "default"), secret("trainmaster-agents-3")
    ),
    "create a StatefulSet that isn't named after its job": lambda o: post(SETS, o.stateful_set("evil")),
    "create a StatefulSet whose label is another job's name": lambda o: post(
        SETS, o.stateful_set("job-evil", labels={**o.labels, JOB_NAME: "another"})
    ),
    "add an owner": lambda o: merge(
        f"{SETS}/job", {"metadata": {"ownerReferences": [o.owner(), o.config_map_owner()]}}
    ),
    "add an owner by apply": lambda o: apply(
        f"{SETS}/job", o.stateful_set("job", replicas=1, ownerReferences=[o.owner(), o.config_map_owner()])
    ),
    "change an owner's name": lambda o: merge(
        f"{SETS}/job", {"metadata": {"ownerReferences": [o.owner(name="another")]}}
    ),
    "create a StatefulSet whose label is another uid": lambda o: post(
        SETS, o.stateful_set("job-evil", labels={LABEL: "another"})
    ),
    "create a StatefulSet by apply, without labels": lambda o: apply(
        f"{SETS}/job-evil", o.stateful_set("job-evil", labels={})
    ),
    "create a StatefulSet with a generated name": lambda o: post(
        SETS, {**o.stateful_set("x"), "metadata": {"generateName": "evil-"}}
    ),
    "adopt a foreign StatefulSet by apply": lambda o: apply(
        f"{SETS}/foreign", {**o.stateful_set("foreign"), **FOREIGN_SET}
    ),
    "create a StatefulSet for foreign pods": lambda o: post(
        SETS, {**o.stateful_set("job-foreign-pods"), **FOREIGN_SET}
    ),
    "create a Service for foreign pods": lambda o: post(SERVICES, o.service("job-evil", selector={"app": "theirs"})),
    "create a Service with an address": lambda o: post(
        SERVICES, o.service("job-evil", clusterIP="", ports=[{"port": 443}], externalIPs=["192.0.2.1"])
    ),
    "create a NetworkPolicy for foreign pods": lambda o: post(NETWORK_POLICIES, o.network_policy("job-evil", {})),
    "let go of its own by removing the label": lambda _: merge(f"{SETS}/job", {"metadata": {"labels": {LABEL: None}}}),
    "let go of its own by removing the owner": lambda _: merge(f"{SETS}/job", {"metadata": {"ownerReferences": None}}),
    "give its own to another job": lambda o: merge(
        f"{SETS}/job",
        {"metadata": {"labels": {LABEL: "another"}, "ownerReferences": [o.owner(uid="another")]}},
    ),
    "scale a foreign StatefulSet": lambda _: merge(f"{SETS}/foreign/scale", {"spec": {"replicas": 1}}),
    "delete a foreign ConfigMap": lambda _: delete(f"{CONFIG_MAPS}/foreign"),
    "create a ConfigMap of no job": lambda _: post(CONFIG_MAPS, agent("mine")),
    "create a namespace's agent that can be changed": lambda _: post(CONFIG_MAPS, agent(immutable=False)),
    "create a namespace's agent without its label": lambda _: post(
        CONFIG_MAPS, agent(metadata={"name": agent()["metadata"]["name"]})
    ),
    "create a Secret of another type": lambda _: post(SECRETS, secret("trainmaster-agents-1", type="Opaque")),
    "create a Secret of another name": lambda _: post(SECRETS, secret("other")),
    "create an agents' Secret without its label": lambda _: post(
        SECRETS, {**secret("x"), "metadata": {"name": "trainmaster-agents-1"}}
    ),
    "create a service account's token": lambda _: post(
        SECRETS,
        secret(
            "trainmaster-agents-2",
            type="kubernetes.io/service-account-token",
            metadata={
                "name": "trainmaster-agents-2",
                "annotations": {"kubernetes.io/service-account.name": "default"},
                "labels": {"app.kubernetes.io/managed-by": "trainmaster"},
            },
        ),
    ),
    "change an agents' Secret": lambda _: merge(
        f"{SECRETS}/trainmaster-agents-0000000000", {"stringData": {"token": "mine"}}
    ),
    "change a foreign Secret": lambda _: merge(f"{SECRETS}/foreign", {"stringData": {"token": "mine"}}),
    # Only a person with other rights rotates them.
    "change its signing keys": lambda _: merge(
        f"{HOME_SECRETS}/trainmaster-signing-keys", {"stringData": {"key": "new"}}
    ),
    "write signing keys elsewhere": lambda _: post(SECRETS, secret("trainmaster-signing-keys", type="Opaque")),
    "create a Lease elsewhere": lambda _: post(HOME_LEASES.replace("{home}", "{ns}"), lease("trainmaster-operator")),
    "create another Lease": lambda _: post(HOME_LEASES, lease("other")),
    "change a job's spec": lambda _: merge(f"{JOBS}/job", {"spec": {"runPolicy": {"suspend": True}}}),
    "create a job": lambda _: post(JOBS, training_job("mine", "pass")),
    "delete a job that hasn't ended": lambda _: delete(f"{JOBS}/job"),
    "publish an event about something else": lambda o: post(
        EVENTS,
        o.event(
            "evil",
            involvedObject={"apiVersion": "v1", "kind": "Pod", "name": "foreign", "namespace": o.team.namespace},
        ),
    ),
    "publish an event as somebody else": lambda o: post(EVENTS, o.event("evil", source={"component": "kubelet"})),
    "bind a role": lambda _: post(
        "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "evil"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [],
        },
    ),
    "ask for another service account's token": lambda _: post(
        "api/v1/namespaces/{ns}/serviceaccounts/theirs/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}},
    ),
    "connect to a pod": lambda _: get(f"{PODS}/foreign:8472/proxy/"),
}


@pytest.fixture(scope="module")
def operator(shared_cluster: SharedCluster) -> Iterator[Operator]:
    with policy_in_force(shared_cluster) as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
def test_the_operator_s_token_is_good_for_no_other_s_objects(operator: Operator, name: str) -> None:
    answer = operator.ask(ATTACKS[name](operator))
    assert answer.refused, answer
    # The operator's own policy refused it, in a sentence.
    assert "Trainmaster's operator" in answer.body["message"]
