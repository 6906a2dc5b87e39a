"""The chart's admission policy permits the operator's own work, and everybody else's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.cluster.admission import (
    CONFIG_MAPS,
    EVENTS,
    HOME_LEASES,
    HOME_SECRETS,
    JOBS,
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
    lease,
    merge,
    policy_in_force,
    post,
    secret,
)
from trainmaster_local.testing.clusters import SharedCluster

WORK: Mapping[str, Callable[[Operator], Request]] = {
    "create a StatefulSet": lambda o: post(SETS, o.stateful_set("job-second")),
    "create a StatefulSet by apply": lambda o: apply(f"{SETS}/job-third", o.stateful_set("job-third")),
    "change its own by apply": lambda o: apply(
        f"{SETS}/job", o.stateful_set("job", replicas=1, annotations={"trainmaster.dev/rendered-hash": "new"})
    ),
    "create a Service": lambda o: post(SERVICES, o.service("job")),
    "create a NetworkPolicy": lambda o: post(NETWORK_POLICIES, o.network_policy("job", {"matchLabels": o.selector})),
    "add to a ConfigMap of its own": lambda _: merge(f"{CONFIG_MAPS}/job-logs", {"data": {"worker-0.log": "text"}}),
    "create the namespace's agent": lambda _: post(CONFIG_MAPS, agent()),
    "delete the namespace's agent": lambda _: delete(f"{CONFIG_MAPS}/{agent()['metadata']['name']}"),
    "delete a child": lambda _: delete(f"{NETWORK_POLICIES}/job"),
    "annotate a worker": lambda _: merge(f"{PODS}/job-0", annotated({"trainmaster.dev/assignment": '{"attempt": 2}'})),
    "annotate a worker again": lambda _: merge(f"{PODS}/job-0", annotated({"trainmaster.dev/touched": "1"})),
    "write a job's status": lambda o: merge(
        f"{JOBS}/job/status",
        {"metadata": {"uid": o.job["metadata"]["uid"]}, "status": {"phase": "Pending", "attempt": 1}},
    ),
    "publish an event": lambda o: post(EVENTS, o.event("job.1")),
    "count an event up": lambda _: merge(f"{EVENTS}/job.1", {"count": 2}),
    "create the namespace's agents' Secret": lambda _: post(SECRETS, secret("trainmaster-agents-0123456789")),
    "create its signing keys": lambda _: post(HOME_SECRETS, secret("trainmaster-signing-keys", type="Opaque")),
    "create its Lease": lambda _: post(HOME_LEASES, lease("trainmaster-operator")),
    "renew its Lease": lambda _: merge(f"{HOME_LEASES}/trainmaster-operator", {"spec": {"holderIdentity": "me"}}),
    "ask what it may do": lambda _: post(
        "apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
        },
    ),
    "delete a worker": lambda _: delete(f"{PODS}/job-0"),
}


@pytest.fixture(scope="module")
def operator(shared_cluster: SharedCluster) -> Iterator[Operator]:
    with policy_in_force(shared_cluster) as made:
        yield made


def test_the_operator_s_work_is_let_through(operator: Operator) -> None:
    operator.team.kubectl("delete", "--namespace", operator.home, "secret", "trainmaster-signing-keys")
    # The order matters: some requests need what earlier ones made.
    answers = {name: operator.ask(make(operator)) for name, make in WORK.items()}
    assert {name: answer for name, answer in answers.items() if answer.code >= 300} == {}


def test_a_job_goes_when_its_user_said_so_and_it_has_ended(operator: Operator) -> None:
    job = f"{JOBS}/finished"
    ended = {"status": {"phase": "Succeeded"}}
    assert operator.ask(merge(f"{job}/status", ended)).code == 200
    # Nobody has requested its deletion.
    assert operator.ask(delete(job)).refused
    patch = json.dumps({"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}})
    operator.team.kubectl("patch", "dtj", "finished", "--type=merge", "-p", patch)
    assert operator.ask(delete(job)).code == 200


def test_nobody_else_is_asked(operator: Operator) -> None:
    operator.team.kubectl("annotate", "pod", "foreign", "theirs=changed")
    operator.team.kubectl("label", "statefulset", "foreign", "theirs=changed")
