"""If the kubelet's probe ends agents, the status names the cause, and counts it once however many agents stalled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    container,
    decided,
    ended,
    job,
    observed,
    pod,
    pods,
    running,
    said,
    stream,
)
from trainmaster_operator.reconciling.observed.snapshot import Observed, PodView
from trainmaster_operator.wire.report import Report

MESSAGE = "the kubelet: Container worker failed liveness probe, will be restarted"


def killed(worker: int, *, ago: float = 1.0, report: Report | None = None) -> PodView:
    """Returns a pod whose container has ended and started again."""
    end = ended(137 if report is None else 143, ago=ago, message="step 17" if report is None else "", report=report)
    return pod(worker, worker_container=container(restarts=1, last_end=end, started_at=NOW - ago))


def around(*reports: Report, given: PodView, ago: float = 1.0, attempt: int = 1, **fields: Any) -> Observed:
    kills = {(given.uid, NOW - ago): MESSAGE}
    return observed(*reports, given=pods(given), kills=kills, attempt=attempt, **fields)


@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_its_end_is_explained_by_the_kubelets_message(phase: str) -> None:
    status = decided(job(running(phase=phase)), around(given=killed(1))).status
    failure = status.failures[0]
    assert (failure.reason, failure.worker, failure.exit_code) == ("AgentLost", 1, 137)
    assert failure.message.endswith(f"ended with exit code 137: step 17; {MESSAGE}")
    assert (status.phase, status.attempt, status.restarts) == ("Starting", 2, 1)


def test_so_it_is_when_its_next_life_speaks_first() -> None:
    lost = said(1, "Failed", reason="AgentLost", exit_code=69, error="the agent ended without a report", ago=0.1)
    failure = decided(job(running()), around(lost, given=killed(1))).status.failures[0]
    assert failure.message.endswith(f"the agent ended without a report; {MESSAGE}")


def test_an_agent_that_was_well_and_only_out_of_the_kubelets_reach_gets_a_remedy() -> None:
    stopped = said(1, "Stopped", exit_code=143)
    status = decided(job(running()), around(stopped, given=killed(1, report=stopped))).status
    assert (status.failures[0].reason, status.failures[0].worker) == ("AgentLost", 1)
    assert f"{MESSAGE}; its agent was running, but the kubelet couldn't reach its port" in status.failures[0].message


def test_an_old_kill_explains_no_later_stop() -> None:
    """In the next attempt, a failure elsewhere has stopped the rank."""
    failed, stopped = said(0, "Failed", 2), said(1, "Stopped", 2, exit_code=143)
    before = running(2, pod_restart_counts=[0, 1])
    given = around(failed, stopped, given=killed(1, ago=50.0), ago=50.0, attempt=2)
    failure = decided(job(before), given).status.failures[0]
    assert (failure.reason, failure.worker) == ("Error", 0)
    assert MESSAGE not in failure.message


def test_another_agent_that_stood_still_meanwhile_joins_the_attempt_that_opened_without_it() -> None:
    """Its probe fails seconds later. It is the same event, so no failure is added and no rank is restarted."""
    opened = running(2, phase="Starting", ago=20.0, restarts=1)
    other = said(1, "Starting", 2, ago=19.0)
    given = replace(around(other, given=killed(0), attempt=2), stream=stream(2, (1,)))
    status = decided(job(opened), given).status
    assert (status.phase, status.attempt, status.restarts, status.failures) == ("Starting", 2, 1, [])
    assert status.pod_restart_counts == [1, 0]

    # The events of an hour ago may be gone, but the status still has them.
    forgotten = replace(given, kills={})
    assert decided(job(status), forgotten, NOW + 4_000).status.attempt == 2
    joined = replace(given, reports=(other, said(0, "Starting", 2, ago=-1.0)))
    assert decided(job(opened), joined, NOW + 2).status.attempt == 2


def test_one_that_had_begun_the_attempt_has_ended_it() -> None:
    opened = running(2, phase="Starting", ago=400.0, restarts=1)
    reports = (said(0, "Starting", 2, ago=399.0), said(1, "Starting", 2, ago=399.0))
    status = decided(job(opened), around(*reports, given=killed(0), attempt=2)).status
    assert (status.attempt, status.restarts) == (3, 2)
    # If its report was lost too, the restarted agent sends the saved one.
    lost = said(0, "Failed", 2, reason="AgentLost", exit_code=69, error="without a report")
    status = decided(job(opened), around(reports[1], lost, given=killed(0), attempt=2)).status
    assert (status.attempt, status.restarts) == (3, 2)
