"""The cause of an attempt's end is chosen among all reports; the first report doesn't decide."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import decided, job, observed, pod, running, said, situation
from trainmaster_operator.reconciling.policies.attribution import cause_of
from trainmaster_operator.wire.report import Report

OOM = said(2, "Failed", reason="OOMKilled", exit_code=137, ago=0.1)
SIGNAL = said(2, "Failed", reason="Signal", signal=9, exit_code=137, ago=0.1)
ERROR = said(1, "Failed", ago=0.2)
EARLY_ERROR = said(0, "Failed", ago=0.9, error="KeyError: 'x'")
BYSTANDER = said(3, "Failed", culprit=False, error="Connection reset by peer", ago=5.0)
MASTER = said(3, "Failed", reason="MasterUnreachable", culprit=False, ago=5.0)
STOPPED = said(2, "Stopped", ago=9.0)
HUNG = said(1, "Failed", reason="Hung", ago=0.3)


@pytest.mark.parametrize(
    ("reports", "worker", "reason"),
    [
        pytest.param([OOM, EARLY_ERROR, BYSTANDER], 2, "OOMKilled", id="memory before an earlier error"),
        pytest.param([SIGNAL, EARLY_ERROR], 2, "Signal", id="signal before an earlier error"),
        pytest.param([ERROR, EARLY_ERROR], 0, "Error", id="of two errors the earlier"),
        pytest.param([ERROR, BYSTANDER], 1, "Error", id="an error before an earlier broken connection"),
        pytest.param([HUNG, BYSTANDER], 1, "Hung", id="a hang before a broken connection"),
        pytest.param([BYSTANDER, STOPPED], 3, "PeerLost", id="a bystander where nobody else spoke"),
        pytest.param([MASTER], 3, "MasterUnreachable", id="the master unreachable"),
        pytest.param([STOPPED], 2, "Stopped", id="stopped from outside"),
        pytest.param([said(1, "Failed", reason="Sabotage")], 1, "Error", id="a reason that no agent gives"),
        pytest.param([said(1, "Failed", reason="PodDeleted")], 1, "Error", id="a disruption that a pod claims itself"),
    ],
)
def test_the_cause(reports: list[Report], worker: int, reason: str) -> None:
    of = job(running(workers=4), workers=4)
    for order in (reports, reports[::-1]):
        cause = cause_of(situation(of, observed(*order, given=[pod(index) for index in range(4)])), 1)
        assert cause is not None
        assert (cause.worker, cause.reason) == (worker, reason)


def test_no_failure_no_cause() -> None:
    around = observed(said(0, "Running"), said(1, "Finished"))
    assert cause_of(situation(job(running()), around), 1) is None


def test_a_lost_pod_explains_whatever_its_peers_say() -> None:
    around = observed(said(0, "Failed", reason="Signal", signal=6), given=[pod(0), pod(1, deleting=True)])
    cause = cause_of(situation(job(running()), around), 1)
    assert cause is not None
    assert (cause.reason, cause.worker, cause.node) == ("PodDeleted", 1, "node-1")


@pytest.mark.parametrize(
    ("reason", "error", "shown"),
    [
        ("Error", "ValueError: a patient's name", "ended with exit code 1"),
        ("Error", "a patient's name\nCUDA error: uncorrectable ECC error", "ended with exit code 1: uncorrectable"),
        (
            "PreflightMismatch",
            "torch differs: 2.12 on worker 0",
            "a different environment than its peers: torch differs",
        ),
    ],
)
def test_without_leave_to_keep_output_the_message_quotes_nothing_that_a_program_printed(
    reason: str, error: str, shown: str
) -> None:
    around = observed(said(1, "Failed", reason=reason, exit_code=1, error=error))
    failure = decided(job(running(), runPolicy={"keepLogs": False}), around).status.failures[0]
    assert shown in failure.message
    assert "patient" not in failure.message


TRACEBACK = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 41, in step\n    ~~~~^^\n'
    "ValueError: lost\n[rank5]:[W1127 22:10:11.1 ProcessGroupNCCL.cpp:1496] Warning: not destroyed\n"
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"error": "no data set\n"}, "rank 5 (worker 1, pod bert-1, node node-1) ended with exit code 3: no data set"),
        (
            {"reason": "Signal", "signal": 9, "exit_code": 137, "error": "step 17\nkilled by SIGKILL"},
            "rank 5 (worker 1, pod bert-1, node node-1) was killed by signal 9 (SIGKILL): step 17",
        ),
        (
            {"reason": "LaunchError", "rank": None, "exit_code": 65, "error": "cannot run:\nno such file"},
            "worker 1 (pod bert-1, node node-1) couldn't start its program: cannot run: no such file",
        ),
    ],
)
def test_without_an_exception_the_message_begins_with_the_rank(fields: dict[str, Any], message: str) -> None:
    around = observed(said(1, "Failed", **{"rank": 5, "exit_code": 3, **fields}))
    failure = decided(job(running()), around).status.failures[0]
    assert (failure.message, failure.exception, failure.location) == (message, None, None)


def test_the_message_begins_with_the_exception_and_the_users_line() -> None:
    around = observed(said(1, "Failed", rank=5, exit_code=3, error=TRACEBACK))
    failure = decided(job(running()), around).status.failures[0]
    assert (failure.rank, failure.pod, failure.node, failure.exit_code) == (5, "bert-1", "node-1", 3)
    assert (failure.exception, failure.location) == ("ValueError: lost", "train.py:41 in step")
    assert failure.message == (
        "ValueError: lost, at train.py:41 in step; rank 5 (worker 1, pod bert-1, node node-1) ended with exit code 3"
    )
