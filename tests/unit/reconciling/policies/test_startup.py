"""While workers can't start, the status shows the cluster's messages, and the job fails in time.

The waiting reasons and messages were recorded on Kubernetes 1.36 (local/tests/data/kubernetes-pods.jsonl).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    all_up,
    container,
    decided,
    ended,
    happened,
    job,
    kinds,
    observed,
    pod,
    pods,
    running,
    said,
    settled,
    stream,
)
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.observed.snapshot import Observed, PodView, RefusedWrite
from trainmaster_operator.wire.report import Report

NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate"
FRESH: dict[str, Any] = {"phase": "Pending", "pod_uids": [], "pod_restart_counts": []}


def failed(status: JobStatus) -> tuple[str, str]:
    condition = next(item for item in status.conditions if item.type == "Failed")
    return condition.reason, condition.message


def waiting(reason: str, message: str = "", **fields: Any) -> PodView:
    return pod(1, phase="Pending", worker_container=container("waiting", reason=reason, message=message), **fields)


PROBLEMS = [
    pytest.param(
        pod(1, phase="Pending", node=None, worker_container=None, unschedulable=NO_ROOM),
        "Unschedulable",
        f"pod bert-1 can't be scheduled: {NO_ROOM}",
        id="no room",
    ),
    pytest.param(
        waiting("ImagePullBackOff", 'Back-off pulling image "x"'),
        "ImagePull",
        'container worker of pod bert-1: ImagePullBackOff: Back-off pulling image "x"',
        id="no image",
    ),
    pytest.param(
        waiting("CreateContainerConfigError", 'configmap "env" not found'),
        "CreateContainer",
        'container worker of pod bert-1: CreateContainerConfigError: configmap "env" not found',
        id="missing ConfigMap",
    ),
    pytest.param(
        pod(
            1,
            phase="Pending",
            worker_container=container("waiting", reason="PodInitializing"),
            init_containers=(container("terminated", name="copy", end=ended(3, message="no space left")),),
        ),
        "InitFailed",
        "init container copy of pod bert-1 ended with exit code 3: no space left",
        id="init container",
    ),
]


@pytest.mark.parametrize(("lost", "reason", "message"), PROBLEMS)
def test_a_problem_is_shown_at_once_and_ends_the_job_at_its_deadline(lost: PodView, reason: str, message: str) -> None:
    of = job(running(ago=10.0, **FRESH))
    early = decided(of, observed(given=pods(lost)))
    shown = next(item for item in early.status.conditions if item.type == "Running")
    assert (shown.status, shown.reason, shown.message) == ("False", reason, message)
    assert reason in happened(early)
    assert early.requeue_after is not None
    assert early.requeue_after <= 890.0
    late = decided(job(early.status), observed(given=pods(lost)), NOW + 890)
    assert late.status.phase == "Failed"
    assert failed(late.status) == (reason, f"not all ranks were up within 900 s (startupSeconds): {message}")


def test_the_kubelets_changing_message_is_shown_once() -> None:
    of = job(running(ago=10.0, **FRESH))
    first = decided(of, observed(given=pods(waiting("ErrImagePull", "rpc error: not found"))))
    second = decided(job(first.status), observed(given=pods(waiting("ImagePullBackOff", "Back-off pulling"))))
    assert second.status == first.status
    assert second.events == ()


def test_a_problem_that_has_passed_is_removed() -> None:
    of = job(running(ago=10.0, **FRESH))
    first = decided(of, observed(given=pods(pod(1, node=None, worker_container=None, unschedulable=NO_ROOM))))
    gone = decided(job(first.status), observed(given=pods()))
    assert next(item for item in gone.status.conditions if item.type == "Running").reason == "PodsScheduled"


@pytest.mark.parametrize(
    ("broken", "reason", "message"),
    [
        (
            waiting("InvalidImageName", 'Failed to apply default image tag "::"'),
            "InvalidImageName",
            'container worker of pod bert-1: InvalidImageName: Failed to apply default image tag "::"',
        ),
        (
            pod(
                1,
                worker_container=container(
                    "waiting",
                    reason="RunContainerError",
                    message="failed to start",
                    last_end=ended(128, "StartError", message='exec: "python3": not found'),
                ),
            ),
            "LaunchError",
            'container worker of pod bert-1 couldn\'t be started: exec: "python3": not found',
        ),
        (
            pod(
                1,
                phase="Pending",
                worker_container=container("waiting", reason="PodInitializing"),
                init_containers=(container("waiting", name="trainmaster-agent", reason="InvalidImageName"),),
            ),
            "InvalidImageName",
            "container trainmaster-agent of pod bert-1: InvalidImageName",
        ),
    ],
)
def test_what_time_cant_heal_fails_at_once(broken: PodView, reason: str, message: str) -> None:
    decision = decided(job(running(ago=3.0, **FRESH)), observed(given=pods(broken)))
    assert decision.status.phase == "Failed"
    assert failed(decision.status) == (reason, message)
    assert kinds(decision) == []


@pytest.mark.parametrize(
    ("given", "reports", "message"),
    [
        (
            [pod(0)],
            [],
            "bert-1 was not created; StatefulSet bert couldn't be created; the operator's log has the reason",
        ),
        ([pod(0), waiting("ContainerCreating")], [], "bert-1 was not running; `kubectl describe pod bert-1` shows why"),
        ([pod(0), pod(1)], [said(0, "Running")], "the ranks of bert-1 were not up; `kubectl logs bert-1` shows why"),
    ],
)
def test_the_deadline_names_who_isnt_up_where_nobody_says_why(
    given: list[PodView], reports: list[Report], message: str
) -> None:
    of = job(running(ago=900.0, **FRESH))
    status = decided(of, observed(*reports, given=given)).status
    assert failed(status) == (
        "StartupDeadlineExceeded",
        f"not all ranks were up within 900 s (startupSeconds): {message}",
    )


def test_a_set_that_is_there_knows_why_a_pod_of_it_isnt() -> None:
    of = job(running(ago=900.0, **FRESH))
    status = decided(of, settled(of, observed(given=[pod(0)]))).status
    assert failed(status)[1].endswith("bert-1 was not created; `kubectl describe statefulset bert` shows why")


WORDS = 'StatefulSet.apps "bert" is invalid: spec.template.spec.nodeName: Invalid value: "A B"'
NEVER = RefusedWrite("apply StatefulSet bert", "Invalid", WORDS, NOW)


def test_a_child_that_can_never_be_made_fails_the_job_at_once_with_the_servers_words() -> None:
    of = job(running(ago=1.0, **FRESH))
    decision = decided(of, Observed(refused_writes=(NEVER,)))
    assert failed(decision.status) == ("Refused", f"apply StatefulSet bert was refused (Invalid): {WORDS}")
    assert happened(decision) == ["Refused"]


@pytest.mark.parametrize(
    "problem",
    [
        replace(NEVER, reason="HTTP 400", message="<html>the proxy is out of sorts</html>"),
        replace(NEVER, reason="Forbidden", message="statefulsets.apps is forbidden: exceeded"),
        # If a cluster's policies forbid something now, they may allow it later, whatever code they answer with.
        replace(NEVER, message='admission webhook "policy.example.com" denied the request: no team label'),
        replace(NEVER, message="statefulsets.apps is forbidden: ValidatingAdmissionPolicy 'team' denied request: no"),
        replace(NEVER, reason="BadRequest", message='admission webhook "policy.example.com" denied the request'),
    ],
)
def test_a_refusal_that_may_pass_waits_for_startup_seconds(problem: RefusedWrite) -> None:
    of = job(running(ago=1.0, **FRESH))
    decision = decided(of, Observed(refused_writes=(problem,)))
    assert decision.status.phase == "Pending"
    assert next(item for item in decision.status.conditions if item.type == "Running").reason == "Refused"


def test_a_change_that_is_refused_as_invalid_ends_no_job_that_may_start_without_it() -> None:
    of = job(running(ago=1.0, **FRESH))
    made = replace(settled(of, Observed()), refused_writes=(NEVER,))
    assert decided(of, made).status.phase == "Pending"
    later = job(running(attempt=2, phase="Restarting", pod_uids=[]))
    assert decided(later, Observed(refused_writes=(NEVER,))).status.phase == "Restarting"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            RefusedWrite("apply Service bert", "NotOurs", "Service 'bert' exists and belongs to nobody", NOW),
            "NameTaken",
        ),
        (
            RefusedWrite("create the pods of StatefulSet bert", "FailedCreate", "exceeded quota: gpus", NOW),
            "QuotaExceeded",
        ),
    ],
)
def test_a_refused_write_is_shown_and_ends_the_job_at_its_deadline(problem: RefusedWrite, reason: str) -> None:
    of = job(running(ago=900.0, **FRESH))
    assert failed(decided(of, Observed(refused_writes=(problem,))).status)[0] == reason
    early = decided(of, Observed(refused_writes=(problem,)), NOW - 100)
    assert next(item for item in early.status.conditions if item.type == "Running").reason == reason


def test_the_deadline_counts_for_a_replacement_too() -> None:
    held = decided(job(running()), observed(given=[pod(0)])).status
    assert decided(job(held), observed(given=[pod(0)]), NOW + 899).status.phase == "Restarting"
    assert decided(job(held), observed(given=[pod(0)]), NOW + 900).status.phase == "Failed"


def test_once_up_there_is_no_deadline() -> None:
    of = job(running(ago=1e6))
    assert decided(of, observed(*all_up())).status.phase == "Running"
    assert decided(of, observed(stream=stream(workers=()))).status.phase == "Running"
