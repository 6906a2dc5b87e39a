"""Runs the command `kubectl dtj` for its tests (`transport` in conftest is its cluster), and builds a job to show."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from trainmaster.cli import dtj

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
PODS = "/api/v1/namespaces/default/pods"

RUNNING: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "restarts": 1,
    "workers": {"desired": 2, "created": 2, "running": 2},
    "startTime": "2026-11-21T04:00:00Z",
    "progress": {"step": 120, "totalSteps": 1000, "loss": 0.31416, "samplesPerSecond": 5123.4, "etaSeconds": 75},
    "failures": [
        {
            "attempt": 1,
            "reason": "OOMKilled",
            "message": "CUDA out of memory",
            "worker": 1,
            "rank": 5,
            "pod": "reviews-1",
            "node": "gpu-7",
            "exitCode": 137,
            "failedAt": "2026-11-21T04:01:00Z",
            "recovery": {
                "seconds": 0.412,
                "repeatedSteps": 12,
                "detected": 0,
                "assigned": 0.1,
                "stopped": 0.2,
                "launched": 0.012,
                "firstStep": 0.1,
            },
        }
    ],
}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(dtj.app, list(arguments), env={"COLUMNS": "160", "NO_COLOR": "1"})


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    at = "2026-11-21T04:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
