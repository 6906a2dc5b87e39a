"""`kubectl get pods` shows these cells (kubernetes `pkg/printers/internalversion/printers_test.go`)."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_local.kinds.pods.printing import pod_row

NOW = 1000.0
EARLIER = "1970-01-01T00:16:37Z"  # 3 s before


def pod(*states: dict[str, Any], spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    names = [f"c{index}" for index in range(len(states))]
    containers = [{"name": name} for name in names]
    statuses = [{"name": name, "restartCount": 0, **state} for name, state in zip(names, states, strict=True)]
    return {
        "metadata": {"name": "p", "creationTimestamp": "1970-01-01T00:16:30Z"},
        "spec": {"containers": containers, **(spec or {})},
        "status": {"phase": "Running", "containerStatuses": statuses, **status},
    }


RUNNING = {"ready": True, "state": {"running": {}}}
CRASHED = {
    "ready": False,
    "restartCount": 2,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": EARLIER}},
}
DONE = {"ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
KILLED = {"ready": False, "state": {"terminated": {"exitCode": 137, "signal": 9}}}
INIT = {"initContainers": [{"name": "i0"}, {"name": "i1"}]}
READY = {"type": "Ready", "status": "True"}


def init_statuses(*states: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": f"i{index}", "restartCount": 0, "state": state} for index, state in enumerate(states)]


@pytest.mark.parametrize(
    ("subject", "cells"),
    [
        (pod(RUNNING), ["1/1", "Running", "0"]),
        (pod(RUNNING, CRASHED), ["1/2", "CrashLoopBackOff", "2 (3s ago)"]),
        (pod(DONE, phase="Succeeded"), ["0/1", "Completed", "0"]),
        (pod(KILLED, phase="Failed"), ["0/1", "Signal:9", "0"]),
        (pod(RUNNING, DONE, conditions=[READY]), ["1/2", "Running", "0"]),
        (pod(RUNNING, DONE), ["1/2", "NotReady", "0"]),
        (pod(phase="Failed", reason="Evicted"), ["0/0", "Evicted", "0"]),
        (
            pod(
                {"state": {"waiting": {"reason": "PodInitializing"}}},
                spec=INIT,
                phase="Pending",
                initContainerStatuses=init_statuses({"running": {}}, {"waiting": {"reason": "PodInitializing"}}),
            ),
            ["0/1", "Init:0/2", "0"],
        ),
        (
            pod(
                {"state": {"waiting": {"reason": "PodInitializing"}}},
                spec=INIT,
                phase="Pending",
                initContainerStatuses=init_statuses({"terminated": {"exitCode": 0}}, {"running": {}}),
            ),
            ["0/1", "Init:1/2", "0"],
        ),
        (
            pod(
                {"state": {"waiting": {"reason": "PodInitializing"}}},
                spec=INIT,
                phase="Pending",
                initContainerStatuses=init_statuses({"terminated": {"exitCode": 2}}, {"waiting": {}}),
            ),
            ["0/1", "Init:ExitCode:2", "0"],
        ),
        (
            pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            ["0/0", "SchedulingGated", "0"],
        ),
    ],
)
def test_ready_status_and_restarts(subject: dict[str, Any], cells: list[str]) -> None:
    assert pod_row(subject, NOW)[1:4] == cells


def test_deleted_pod_is_terminating() -> None:
    deleted = pod(RUNNING)
    deleted["metadata"]["deletionTimestamp"] = EARLIER
    assert pod_row(deleted, NOW)[2] == "Terminating"
    deleted["status"]["phase"] = "Succeeded"
    assert pod_row(deleted, NOW)[2] != "Terminating"


def test_wide_cells() -> None:
    wide = pod(RUNNING, podIP="10.0.0.1", podIPs=[{"ip": "10.0.0.1"}])
    wide["spec"]["nodeName"] = "n"
    wide["spec"]["readinessGates"] = [{"conditionType": "x"}, {"conditionType": "Ready"}]
    wide["status"]["conditions"] = [READY]
    assert pod_row(wide, NOW)[5:] == ["10.0.0.1", "n", "<none>", "1/2"]
