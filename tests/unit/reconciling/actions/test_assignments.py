"""The operator decides which pods get an assignment, and touches pods whose agents haven't seen theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    all_up,
    container,
    decided,
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
from trainmaster_operator.reconciling.decision import Assign
from trainmaster_operator.reconciling.observed.snapshot import Observed


class TestAssignments:
    def test_a_pod_with_an_old_annotation_is_assigned_again(self) -> None:
        of = job(running(attempt=2))
        around = settled(of, observed(*all_up(2), attempt=2))
        stale = replace(around.pods[1], assignment=None)
        assert kinds(decided(of, replace(around, pods=(around.pods[0], stale)))) == ["Assign 2 Run to bert-1"]

    def test_a_pod_on_its_way_out_is_assigned_nothing(self) -> None:
        decision = decided(job(running()), observed(given=[pod(0), pod(1, deleting=True)]))
        (assign,) = [action for action in decision.actions if isinstance(action, Assign)]
        assert [pod.name for pod in assign.pods] == ["bert-0"]

    def test_every_attempt_has_its_own_port_and_the_jobs_uid(self) -> None:
        seen = set()
        for attempt in (1, 2, 3):
            decision = decided(job(running(attempt=attempt)), observed(*all_up(attempt), attempt=attempt))
            (assign,) = [action.assignment for action in decision.actions if isinstance(action, Assign)]
            seen.add((assign.port, assign.job))
        assert len({port for port, _ in seen}) == 3
        assert {uid for _, uid in seen} == {job().uid}


class TestFinishedWorkers:
    """In attempt 1, pods are named once a worker has finished, so no later pod of that worker repeats the attempt."""

    def decided(self, now: float, **worker: Any) -> list[str]:
        of = job(running())
        around = settled(of, observed(said(0, "Running"), said(1, "Finished", at=NOW)))
        (zero, one) = around.pods
        return kinds(decided(of, replace(around, pods=(zero, replace(one, **worker))), now))

    def test_the_template_names_the_pods_when_the_others_train_on(self) -> None:
        assert self.decided(NOW + 1.9) == []
        assert self.decided(NOW + 2.1) == ["Apply StatefulSet x2"]

    def test_a_pod_that_comes_in_its_place_is_told_that_it_isnt_meant(self) -> None:
        assert self.decided(NOW + 2.1, uid="new") == ["Assign 1 Run to bert-1", "Apply StatefulSet x2"]

    def test_the_job_is_looked_at_again_when_the_template_is_due(self) -> None:
        of = job(running())
        around = settled(of, observed(said(0, "Running"), said(1, "Finished", at=NOW)))
        wait = decided(of, around, NOW + 0.5).requeue_after
        assert wait is not None and wait <= 1.5


class TestTouching:
    def around(self, **fields: Any) -> Observed:
        of = job(running(attempt=2, phase="Starting", ago=1.3))
        late: dict[str, Any] = {"stream": stream(2, w1=1), **fields}
        return settled(of, observed(said(0, "Starting", 2), attempt=2, **late))

    def decided(self, around: Observed, now: float = NOW) -> list[str]:
        return kinds(decided(job(running(attempt=2, phase="Starting", ago=1.3)), around, now))

    def test_a_pod_whose_agent_hasnt_seen_its_attempt_is_touched(self) -> None:
        assert self.decided(self.around()) == ["Touch bert-1"]

    def test_not_before_its_time(self) -> None:
        of = job(running(attempt=2, phase="Starting", ago=1.0))
        around = settled(of, observed(said(0, "Starting", 2), attempt=2, stream=stream(2, w1=1)))
        decision = decided(of, around)
        assert kinds(decision) == []
        assert decision.requeue_after == pytest.approx(0.25)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"stream": stream(2)}, id="it has seen it"),
            pytest.param(
                {"given": pods(pod(1, worker_container=container("waiting")))}, id="its container isn't there yet"
            ),
            pytest.param({"given": pods(pod(1, deleting=True))}, id="it goes"),
            pytest.param({"given": pods(pod(1, touched_at=NOW - 0.5))}, id="it was touched a moment ago"),
            pytest.param(
                {"given": pods(pod(1, worker_container=container(started_at=NOW - 1)))}, id="it started just now"
            ),
        ],
    )
    def test_who_isnt_touched(self, fields: dict[str, Any]) -> None:
        assert "Touch bert-1" not in self.decided(self.around(**fields))

    def test_the_waits_double(self) -> None:
        def touches(touched_ago: float, now: float) -> bool:
            around = self.around(given=pods(pod(1, touched_at=now - touched_ago)))
            return "Touch bert-1" in self.decided(around, now)

        # The attempt was opened 1.3 s before NOW.
        assert touches(2.5, NOW + 2.5)
        assert not touches(2.5, NOW + 10)
        assert touches(12, NOW + 20)
        assert not touches(50, NOW + 100)

    def test_the_first_attempts_file_is_there_before_the_agent(self) -> None:
        of = job(running(phase="Starting"))
        assert kinds(decided(of, settled(of, observed(stream=stream(0))))) == []
