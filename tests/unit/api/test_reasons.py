"""Observations of a job produce each reason of the documented table, and the status shows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import NOW, container, decided, ended, job, observed, pod, pods, running, said
from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.observed.snapshot import Observed, RefusedWrite

STARTING: dict[str, Any] = {"phase": "Pending", "pod_uids": [], "pod_restart_counts": [], "ago": 900.0}
QUOTA = RefusedWrite("create the pods of StatefulSet bert", "FailedCreate", "exceeded quota: gpus", NOW)
REFUSED = RefusedWrite("apply Service bert", "Forbidden", "webhook says no", NOW)
UNSERVED = RefusedWrite("apply PodGroup bert", "NotInstalled", "the cluster doesn't serve podgroups", NOW)
FAILED_BEFORE = {
    "attempt": 0,
    "reason": "Error",
    "message": "KeyError: 'x'",
    "failedAt": "2026-11-20T00:00:00Z",
}
FOREIGN = RefusedWrite("apply Service bert", "NotOurs", "Service 'bert' exists and belongs to nobody", NOW)


def failing(reason: str, **fields: Any) -> Observed:
    return observed(said(1, "Failed", reason=reason, **fields))


def losing(**fields: Any) -> Observed:
    return observed(given=pods(pod(1, **fields)))


def unable(reason: str, **fields: Any) -> Observed:
    return losing(phase="Pending", worker_container=container("waiting", reason=reason), **fields)


# Each case has observations of worker 1 (or of the job), the earlier status, and fields of the spec.
CASES: dict[str, tuple[Observed, dict[str, Any], dict[str, Any]]] = {
    "Error": (failing("Error"), {}, {}),
    "Signal": (failing("Signal", signal=11, exit_code=139), {}, {}),
    "OOMKilled": (losing(worker_container=container(restarts=1, last_end=ended(137, "OOMKilled"))), {}, {}),
    "Hung": (failing("Hung", exit_code=68), {}, {}),
    "PreflightMismatch": (failing("PreflightMismatch", exit_code=67), {}, {}),
    "MasterUnreachable": (failing("MasterUnreachable", exit_code=66, culprit=False), {}, {}),
    "LaunchError": (failing("LaunchError", exit_code=65), {}, {}),
    "Diverged": (failing("Diverged", exit_code=70), {}, {}),
    "Usage": (losing(worker_container=container("terminated", end=ended(64))), {}, {}),
    "AgentLost": (losing(worker_container=container(restarts=1, last_end=ended(137))), {}, {}),
    "PeerLost": (failing("Error", culprit=False, error="Connection reset by peer"), {}, {}),
    "Stopped": (observed(said(1, "Stopped")), {}, {}),
    "PodDeleted": (losing(deleting=True), {}, {}),
    "Evicted": (losing(deleting=True, disruption="EvictionByEvictionAPI"), {}, {}),
    "Preempted": (losing(deleting=True, disruption="PreemptionByScheduler"), {}, {}),
    "NodeLost": (losing(deleting=True, disruption="DeletionByTaintManager"), {}, {}),
    "LimitExceeded": (
        losing(phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit"),
        {},
        {},
    ),
    "ImagePull": (unable("ImagePullBackOff"), STARTING, {}),
    "InvalidImageName": (unable("InvalidImageName"), STARTING, {}),
    "CreateContainer": (unable("CreateContainerConfigError"), STARTING, {}),
    "InitFailed": (
        unable("PodInitializing", init_containers=(container("terminated", name="copy", end=ended(3)),)),
        STARTING,
        {},
    ),
    "Unschedulable": (
        losing(phase="Pending", node=None, worker_container=None, unschedulable="no GPUs"),
        STARTING,
        {},
    ),
    "QuotaExceeded": (Observed(refused_writes=(QUOTA,)), STARTING, {}),
    "Refused": (Observed(refused_writes=(REFUSED,)), STARTING, {}),
    "NotInstalled": (Observed(refused_writes=(UNSERVED,)), STARTING, {}),
    "NameTaken": (Observed(refused_writes=(FOREIGN,)), STARTING, {}),
    "StartupDeadlineExceeded": (observed(given=[pod(0)]), STARTING, {}),
    "DeadlineExceeded": (observed(), {}, {"runPolicy": {"activeDeadlineSeconds": 10}}),
    "MaxRestartsExceeded": (failing("Error"), {}, {"failurePolicy": {"maxRestarts": 0}}),
    "FailsAtStart": (failing("Error", error="KeyError: 'x'"), {"unproven_since": 0, "failures": [FAILED_BEFORE]}, {}),
}


def reasons_in(status: JobStatus) -> set[str]:
    """Returns the reasons in a job's failures and conditions."""
    return {failure.reason for failure in status.failures} | {item.reason for item in status.conditions}


# The other reason is for jobs that were never accepted, so no rule can answer it (test_lifecycle, `TestInvalid`).
OF_ACCEPTED_JOBS = set(REASONS) - {"InvalidSpec"}


@pytest.mark.parametrize("reason", sorted(OF_ACCEPTED_JOBS))
def test_a_reason_is_produced(reason: str) -> None:
    around, before, spec = CASES[reason]
    decision = decided(job(running(**before), **spec), around)
    assert reason in reasons_in(decision.status), decision.status
    answer = REASONS[reason].answer
    failed = decision.status.phase == "Failed"
    assert failed == (answer == "Fail"), "the table's answer is what happens"
    if decision.status.failures and answer != "Fail":
        assert decision.status.failures[0].counted == (answer == "Restart")
