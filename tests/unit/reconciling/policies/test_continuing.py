"""In continued attempts, ranks continue training after a loss, and the others join later (`continuing`, `joining`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.unit.reconciling.builders import (
    NOW,
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
    situation,
    stream,
)
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobStatus, WorkerCounts
from trainmaster_operator.reconciling.actions.assignments import desired_assignment
from trainmaster_operator.reconciling.decide import requeue_after
from trainmaster_operator.reconciling.decision import Decision
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.reconciling.transition import condition
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report

WORKERS = 3


def able(*workers: int, attempt: int = 1, **fields: Any) -> tuple[Report, ...]:
    """Returns the reports of workers that train and can continue."""
    return tuple(said(worker, "Running", attempt, able=True, **fields) for worker in workers)


def training(attempt: int = 1, workers: int = WORKERS, **fields: Any) -> JobStatus:
    return running(attempt, workers=workers, **fields)


def without(worker: int, attempt: int = 2, workers: int = WORKERS, **fields: Any) -> JobStatus:
    """Returns attempt 2, which has continued training for 14 s without a worker (of one rank)."""
    uids: list[str | None] = [f"uid-{each}" for each in range(workers)]
    values: dict[str, Any] = {
        "continues": 1,
        "absent_ranks": [worker],
        "training_with": f"{workers - 1} of {workers} workers",
        "pod_uids": uids,
        "ago": 14.0,
        **fields,
    }
    return running(attempt, workers=workers, **values)


def all_pods(*given: PodView, workers: int = WORKERS) -> tuple[PodView, ...]:
    return pods(*given, workers=workers)


def why(decision: Decision) -> str:
    shown = condition(decision.status.conditions, "Running")
    return "" if shown is None else shown.message


def assigned(decision: Decision, *spec: Any, **fields: Any) -> Assignment:
    """Returns the assignment that pods get after a decision."""
    of = job(decision.status, **{"workers": WORKERS, **fields})
    return desired_assignment(situation(of, observed(given=all_pods())))


def shape(decision: Decision) -> tuple[str | None, int, int | None, list[int]]:
    status = decision.status
    return status.phase, status.attempt, status.continues, status.absent_ranks


class TestLoss:
    """A worker or a rank is lost."""

    @pytest.mark.parametrize(
        ("reports", "lost_pod", "absent"),
        [
            pytest.param((*able(0, 2), said(1, "Failed", rank=1)), None, [1], id="a rank that fails"),
            pytest.param((*able(0, 2), said(1, "Stopped")), None, [1], id="ranks that are stopped from outside"),
            pytest.param(able(0, 1, 2), pod(1, deleting=True, deadline=NOW + 30), [1], id="a pod that is deleted"),
            pytest.param(able(0, 1, 2), pod(0, uid="uid-new"), [0], id="a pod that was replaced"),
            pytest.param(
                able(0, 1, 2), pod(2, phase="Failed", reason="Evicted"), [2], id="a pod that was evicted at once"
            ),
            pytest.param(
                (said(0, "Failed", rank=0), *able(1), said(2, "Failed", rank=2)), None, [0, 2], id="two ranks at once"
            ),
            pytest.param(
                able(0, 2),
                pod(1, worker_container=container("waiting", last_end=ended(137))),
                [1],
                id="a container that dies without a report",
            ),
            pytest.param(
                (*able(0, 2), said(1, "Failed", reason="AgentLost", exit_code=None)),
                None,
                [1],
                id="a worker whose agent doesn't answer",
            ),
        ],
    )
    def test_the_others_train_on_in_the_pass_that_sees_it(
        self, reports: tuple[Report, ...], lost_pod: PodView | None, absent: list[int]
    ) -> None:
        silent = stream(workers=(0, 2)) if absent == [1] else stream(workers=range(3))
        around = observed(*reports, given=all_pods(*([lost_pod] if lost_pod else [])), stream=silent)
        decision = decided(job(training(), workers=WORKERS), around)
        assert shape(decision) == ("Running", 2, 1, absent)
        assert decision.status.workers.running == WORKERS - len(absent)
        missing = "worker {} is" if len(absent) == 1 else "workers {}, {} are"
        trains = f"attempt 2: training with {WORKERS - len(absent)} of 3 workers"
        assert why(decision) == f"{trains}; {missing.format(*absent)} starting"
        assert happened(decision)[1:] == ["Continued"]
        assert decision.events[1].message == f"Attempt 2 continues with {WORKERS - len(absent)} of 3 workers"

    def test_it_costs_what_it_would_cost_otherwise(self) -> None:
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        failed = decided(job(training(), workers=WORKERS), around)
        assert (failed.status.restarts, failed.status.disruptions) == (1, 0)
        assert (failed.status.failures[0].rank, failed.status.failures[0].counted) == (1, True)
        gone = observed(*able(0, 1, 2), given=[pod(0), pod(2)], stream=stream(workers=range(3)))
        disrupted = decided(job(training(), workers=WORKERS), gone)
        assert (disrupted.status.restarts, disrupted.status.disruptions) == (0, 1)

    def test_there_is_no_back_off_for_those_that_are_well(self) -> None:
        policy = {"backoff": {"initialSeconds": 60}}
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        decision = decided(job(training(), workers=WORKERS, failurePolicy=policy), around)
        assert shape(decision) == ("Running", 2, 1, [1])
        assert decision.status.next_attempt_time is None

    def test_the_assignment_names_who_is_absent_and_whose_host_has_the_store(self) -> None:
        around = observed(said(0, "Failed", rank=0), *able(1, 2), given=all_pods())
        assignment = assigned(decided(job(training(), workers=WORKERS), around))
        assert (assignment.attempt, assignment.continues, assignment.absent) == (2, 1, (0,))
        assert assignment.workers == (0, 1, 2)
        assert assignment.uids == ("", "uid-1", "uid-2"), "any pod of the absent worker may prepare"
        assert assignment.master == assignment.hosts[1]
        assert Assignment.parse(assignment.to_wire()) == assignment

    def test_without_a_restart_left_the_job_fails(self) -> None:
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        decision = decided(job(training(), workers=WORKERS, failurePolicy={"maxRestarts": 0}), around)
        assert decision.status.phase == "Failed"

    def test_a_rule_that_fails_the_job_still_does(self) -> None:
        rules = [{"exitCodes": [1], "action": "Fail"}]
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        decision = decided(job(training(), workers=WORKERS, failurePolicy={"rules": rules}), around)
        assert decision.status.phase == "Failed"


class TestSeveralRanks:
    """Workers have two ranks each: worker 1 has ranks 2 and 3."""

    spec: ClassVar[Any] = {"workers": WORKERS, "processesPerWorker": 2}

    def test_a_worker_that_loses_one_keeps_the_other(self) -> None:
        around = observed(*able(0, 2), said(1, "Failed", rank=3, able=True), given=all_pods())
        decision = decided(job(training(), **self.spec), around)
        assert shape(decision) == ("Running", 2, 1, [3])
        assert why(decision) == (
            "attempt 2: training with 2 of 3 workers and 1 of 2 ranks of worker 1; rank 3 of worker 1 is starting"
        )
        assignment = assigned(decision, processesPerWorker=2)
        assert (assignment.absent, assignment.uids) == ((3,), ("uid-0", "uid-1", "uid-2"))
        assert assignment.present(1, 2) == (0,)

    @pytest.mark.parametrize("fields", [{"rank": 3, "able": False}, {"rank": None, "able": True}])
    def test_all_are_lost_where_the_others_do_not_live_or_none_is_named(self, fields: dict[str, Any]) -> None:
        around = observed(*able(0, 2), said(1, "Failed", **fields), given=all_pods())
        assert decided(job(training(), **self.spec), around).status.absent_ranks == [2, 3]

    def test_a_rank_that_fails_before_it_joins_is_started_again_alone(self) -> None:
        status = training(2, continues=1, absent_ranks=[3], ago=14.0)

        def failed(ago: float) -> Decision:
            failure = {"rank": 3, "reason": "Error", "exit_code": 1, "error": "ValueError: bad"}
            reports = (*able(0, 2, attempt=2), said(1, "Running", 2, able=True, ago=ago, **failure))
            return decided(job(status, **self.spec), observed(*reports, given=all_pods(), attempt=2))

        early = failed(4.0)
        assert (shape(early), early.status.restarts) == (("Running", 2, 1, [3]), 0)
        assert early.status.workers.running == 3
        assert why(early).endswith(
            "; rank 3 of worker 1 couldn't join: ValueError: bad; rank 3 (worker 1, pod bert-1, node node-1) "
            "ended with exit code 1"
        )
        again = failed(5.5)
        assert (shape(again), again.status.restarts) == (("Running", 3, 1, [3]), 1)


class TestFallingBack:
    """If some of the remaining ranks can't continue, the attempt ends for all of them."""

    def test_a_job_whose_ranks_say_nothing_restarts_them_all(self) -> None:
        reports = (said(0, "Running"), said(1, "Failed", rank=1), said(2, "Running"))
        decision = decided(job(training(), workers=WORKERS), observed(*reports, given=all_pods()))
        assert shape(decision) == ("Starting", 2, None, [])
        assert "continue" not in why(decision)

    @pytest.mark.parametrize(
        ("other", "sentence"),
        [
            (said(2, "Running"), "its script doesn't use trainloop.recovery"),
            (said(2, "Finished"), "they have finished"),
        ],
    )
    def test_the_message_says_whose_ranks_could_not(self, other: Report, sentence: str) -> None:
        around = observed(*able(0), said(1, "Failed", rank=1), other, given=all_pods())
        decision = decided(job(training(), workers=WORKERS), around)
        assert shape(decision) == ("Starting", 2, None, [])
        assert f"; worker 2's ranks can't continue: {sentence}" in why(decision)

    def test_the_message_has_what_a_rank_said(self) -> None:
        said_so = {2: {2: RankProgress(step=3, cannot_continue="its parallel layout needs all ranks")}}
        reports = (*able(0), said(1, "Failed", rank=1), said(2, "Running"))
        around = observed(*reports, given=all_pods(), progress=said_so, progress_attempt=1, progress_at=NOW - 1)
        decision = decided(job(training(), workers=WORKERS), around)
        assert "worker 2's ranks can't continue: its parallel layout needs all ranks" in why(decision)

    def test_nobody_is_left(self) -> None:
        around = observed(said(0, "Failed"), said(1, "Failed"))
        assert shape(decided(job(training(workers=2)), around)) == ("Starting", 2, None, [])

    def test_an_elastic_job_keeps_its_least_number(self) -> None:
        elastic = {"minWorkers": 3, "maxWorkers": 3}
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        decision = decided(job(training(worker_order=[0, 1, 2]), workers=WORKERS, elastic=elastic), around)
        assert shape(decision) == ("Starting", 2, None, [])
        assert "too few workers are left: 2, and elastic.minWorkers is 3" in why(decision)

    def test_a_group_that_does_not_form_starts_anew_at_no_further_cost(self) -> None:
        status = without(1, ago=181.0, restarts=1)
        reports = (said(0, "Starting", 2), *able(2, attempt=2), said(1, "Starting", 2))
        around = observed(*reports, given=all_pods(), attempt=2)
        decision = decided(job(status, workers=WORKERS), around)
        assert shape(decision) == ("Starting", 3, None, [])
        assert (decision.status.restarts, decision.status.failures) == (1, [])
        assert why(decision).startswith(
            "attempt 2 couldn't continue: its group didn't form within 180 s; attempt 3 opens"
        )

    def test_it_is_waited_for_until_then(self) -> None:
        facts = job(without(1, ago=10.0), workers=WORKERS)
        around = settled(facts, observed(said(0, "Starting", 2), *able(2, attempt=2), given=all_pods(), attempt=2))
        before = situation(facts, around)
        assert requeue_after(before, desired_assignment(before)) == pytest.approx(170.0)


class TestAFaultWhileAGroupForms:
    """Attempt 2 has opened without worker 1, and another worker is lost before the new group has formed."""

    def lost(self, *reports: Report) -> Decision:
        cause = {"attempt": 1, "reason": "Signal", "worker": 1, "rank": 1, "failedAt": "2026-11-21T04:00:00Z"}
        status = without(1, ago=0.1, restarts=1, workers=4, failures=[cause])
        around = observed(*able(0, 2, 3), said(1, "Failed", rank=1), *reports, given=all_pods(workers=4), attempt=2)
        return decided(job(status, workers=4), around)

    def test_what_was_said_in_the_attempt_before_holds(self) -> None:
        decision = self.lost(said(2, "Failed", 2, rank=2), said(0, "Starting", 2))
        assert shape(decision) == ("Running", 3, 1, [1, 2])
        assert decision.status.restarts == 2

    @pytest.mark.parametrize(
        "reports",
        [
            [said(2, "Failed", 2, rank=2, culprit=False)],
            [said(2, "Stopped"), said(2, "Failed", 2, reason="AgentLost", exit_code=69)],
            [said(2, "Failed", rank=2)],
        ],
        ids=["a late bystander", "ranks that had ended before", "a rank that failed at the same time"],
    )
    def test_what_belongs_to_the_same_fault_costs_nothing_more(self, reports: list[Report]) -> None:
        decision = self.lost(*reports)
        assert shape(decision) == ("Running", 3, 1, [1, 2])
        assert decision.status.restarts == 1
        assert [(failure.attempt, failure.reason) for failure in decision.status.failures] == [(1, "Signal")]


class TestReturn:
    """Attempt 2 has trained without worker 1 for 14 s."""

    def test_a_rank_that_is_ready_joins_and_it_costs_nothing(self) -> None:
        ready = said(1, "Starting", 2, ready=True, uid="uid-new")
        around = observed(*able(0, 2, attempt=2), ready, given=all_pods(pod(1, uid="uid-new")), attempt=2)
        decision = decided(job(without(1, restarts=1), workers=WORKERS), around)
        assert shape(decision) == ("Running", 3, 1, [])
        assert (decision.status.restarts, decision.status.disruptions) == (1, 0)
        assert decision.status.pod_uids == ["uid-0", "uid-new", "uid-2"]
        assert why(decision) == (
            "attempt 3: training with all 3 workers; continued with 2 of 3 workers for 14 s until worker 1 joined"
        )
        assert [event.message for event in decision.events] == [
            "Attempt 3 continues with all 3 workers: worker 1 joined; "
            "before, the job continued with 2 of 3 workers for 14 s"
        ]

    @pytest.mark.parametrize(
        ("report", "view"),
        [
            (said(1, "Starting", 2), pod(1)),
            (said(1, "Starting", 2, ready=True, uid="uid-old"), pod(1)),
            (said(1, "Starting", 2, ready=True), pod(1, deleting=True, deadline=NOW + 30)),
            (said(1, "Starting", 2, ready=True), pod(1, worker_container=container("waiting"))),
        ],
        ids=["it starts", "another pod was ready", "its pod goes again", "its container has ended"],
    )
    def test_others_are_waited_for(self, report: Report, view: PodView) -> None:
        around = observed(*able(0, 2, attempt=2), report, given=all_pods(view), attempt=2)
        assert shape(decided(job(without(1), workers=WORKERS), around)) == ("Running", 2, 1, [1])

    def test_a_pod_that_reported_an_earlier_end_by_exiting_is_lost(self) -> None:
        """Its agent saw neither attempt, and the kubelet delays its container."""
        end = ended(1, report=said(2, "Failed", 1, rank=2))
        exited = pod(2, worker_container=container("waiting", restarts=3, last_end=end))
        status = training(3, continues=1, absent_ranks=[1], ago=14.0)
        around = observed(*able(0, attempt=3), said(1, "Starting", 3), given=all_pods(exited), attempt=3)
        assert shape(decided(job(status, workers=WORKERS), around)) == ("Running", 4, 1, [1, 2])

    def test_nobody_joins_a_group_that_is_forming_or_done(self) -> None:
        for first in (said(0, "Starting", 2), said(0, "Finished", 2)):
            ready = said(1, "Starting", 2, ready=True)
            around = observed(first, *able(2, attempt=2), ready, given=all_pods(), attempt=2)
            assert decided(job(without(1), workers=WORKERS), around).status.attempt == 2

    def test_the_job_succeeds_without_those_that_did_not_come_back(self) -> None:
        around = observed(said(0, "Finished", 2), said(2, "Finished", 2), given=[pod(0), pod(2)], attempt=2)
        assert decided(job(without(1), workers=WORKERS), around).status.phase == "Succeeded"

    def test_the_job_succeeds_when_the_others_finished_before_anybody_could_join(self) -> None:
        """They ended with 0 just as the attempt opened in which worker 1 would have joined them."""
        status = training(3, continues=1, ago=1.0)
        before = [*(said(worker, "Finished", 2) for worker in (0, 2)), said(1, "Starting", 2, ready=True)]
        unaware = [said(1, "Starting", 3), said(0, "Failed", 3, reason="AgentLost", exit_code=69)]
        around = observed(*before, *unaware, given=all_pods(), attempt=3)
        assert decided(job(status, workers=WORKERS), around).status.phase == "Succeeded"

    def test_a_worker_without_a_node_ends_nothing_and_is_said(self) -> None:
        nowhere = pod(1, uid="uid-new", node=None, phase="Pending", unschedulable="0/3 nodes", worker_container=None)
        around = observed(*able(0, 2, attempt=2), given=all_pods(nowhere), attempt=2)
        decision = decided(job(without(1, ago=5000.0), workers=WORKERS), around)
        assert shape(decision) == ("Running", 2, 1, [1])
        assert why(decision) == "attempt 2: training with 2 of 3 workers; worker 1 doesn't start (Unschedulable)"

    def test_what_prepares_is_no_progress_of_the_training(self) -> None:
        progress = {0: {0: RankProgress(step=0)}, 1: {1: RankProgress(step=120)}, 2: {2: RankProgress(step=120)}}
        around = observed(
            *able(1, 2, attempt=2), given=all_pods(), attempt=2, progress=progress, progress_attempt=2, progress_at=NOW
        )
        decision = decided(job(without(0), workers=WORKERS), around)
        assert decision.status.progress is not None
        assert decision.status.progress.step == 120

    def test_a_silent_pod_is_replaced_while_the_others_train(self) -> None:
        """The limit is 40 s, whichever attempts open meanwhile; the current attempt is 3 s old."""

        def is_deleted(since: float = 50.0, started: float = 90.0, left: float = 60.0, failed: float = 70.0) -> bool:
            failure = {"attempt": 1, "reason": "AgentLost", "worker": 1, "failedAt": to_text(NOW - failed)}
            facts = job(without(1, attempt=9, ago=3.0, failures=[failure]), workers=WORKERS)
            view = replace(stream(9, (0, 2)), since=NOW - since, left={1: NOW - left})
            silent = pod(1, worker_container=container(started_at=NOW - started))
            around = observed(*able(0, 2, attempt=9), given=all_pods(silent), attempt=9, stream=view)
            return "Delete bert-1" in kinds(decided(facts, settled(facts, around)))

        assert is_deleted()
        assert not is_deleted(since=30.0), "the operator, or the leader, hasn't been there for longer"
        assert not is_deleted(started=30.0), "its container hasn't"
        assert not is_deleted(left=30.0), "its agent has been connected since"
        assert not is_deleted(failed=30.0), "it has trained since"


class TestAWorkerThatFailsToJoin:
    """Attempt 2 trains without worker 1, whose rank fails while it starts."""

    def decided(self, ago: float, **spec: Any) -> Decision:
        failed = said(1, "Failed", 2, rank=1, ago=ago)
        around = observed(*able(0, 2, attempt=2), failed, given=all_pods(), attempt=2)
        return decided(job(without(1), workers=WORKERS, **spec), around)

    def test_it_is_tried_again_after_a_pause_and_counts(self) -> None:
        early = self.decided(ago=4.0)
        assert (shape(early), early.status.restarts) == (("Running", 2, 1, [1]), 0)
        assert "; worker 1 couldn't join: ValueError: bad; rank 1 (worker 1," in why(early)
        again = self.decided(ago=5.5)
        assert (shape(again), again.status.restarts) == (("Running", 3, 1, [1]), 1)

    def test_ranks_that_were_stopped_from_outside_are_started_again_too(self) -> None:
        """Their agent received SIGTERM, and its container was restarted."""
        stopped = said(1, "Stopped", 2, ago=5.5)
        around = observed(*able(0, 2, attempt=2), stopped, given=all_pods(), attempt=2)
        again = decided(job(without(1), workers=WORKERS), around)
        assert (shape(again), again.status.restarts) == (("Running", 3, 1, [1]), 1)

    def hung(self, *before: tuple[int, int, str], absent: tuple[int, ...] = (1,)) -> Decision:
        """Decides after worker 1 hung in attempt 5; `before` has attempts, workers and reasons of earlier failures."""
        failures = [
            {"attempt": attempt, "worker": worker, "reason": reason, "failedAt": "2026-11-21T03:00:00Z"}
            for attempt, worker, reason in before
        ]
        hung = said(1, "Failed", 5, rank=1, ago=60.0, reason="Hung", exit_code=68, error="not ready")
        there = [each for each in all_pods() if each.worker not in absent or each.worker == 1]
        present = [worker for worker in range(WORKERS) if worker not in absent]
        status = without(1, attempt=5, failures=failures, restarts=2, absent_ranks=list(absent))
        facts = job(status, workers=WORKERS, failurePolicy={"maxRestarts": 9})
        around = observed(*able(*present, attempt=5), hung, given=there, attempt=5)
        return decided(facts, around)

    @pytest.mark.parametrize(
        "before",
        [
            [(4, 1, "Signal")],
            [(4, 1, "Hung")],
            [(4, 1, "Error"), (3, 1, "Hung"), (2, 1, "Hung"), (1, 1, "Signal")],
            [(4, 1, "Hung"), (2, 1, "Hung"), (1, 1, "Signal")],
        ],
        ids=["the first time", "lost by a hang", "not in a row", "after it had joined"],
    )
    def test_one_that_hangs_is_started_again_alone_at_first(self, before: list[tuple[int, int, str]]) -> None:
        assert shape(self.hung(*before)) == ("Running", 6, 1, [1])

    def test_one_that_hangs_again_and_again_is_started_with_all_others(self) -> None:
        decision = self.hung((4, 1, "Hung"), (3, 2, "Signal"), (2, 1, "Signal"))
        assert shape(decision) == ("Starting", 6, None, [])
        assert decision.status.restarts == 3
        assert "; it hung 2 times in a row before it could join the others" in why(decision)
        assert decision.status.failures[0].not_continued

    def test_nobody_is_stopped_for_it_while_a_pod_is_missing(self) -> None:
        hung = self.hung((4, 1, "Hung"), (3, 2, "Signal"), (2, 1, "Signal"), absent=(1, 2))
        assert shape(hung) == ("Running", 6, 1, [1, 2])

    @pytest.mark.parametrize(
        "policy", [{"maxRestarts": 0}, {"rules": [{"exitCodes": [1], "action": "Fail"}]}], ids=["budget", "rule"]
    )
    def test_where_the_job_would_end_it_stays_away(self, policy: dict[str, Any]) -> None:
        assert shape(self.decided(ago=500.0, failurePolicy=policy)) == ("Running", 2, 1, [1])


class TestSpares:
    """The job has three workers and a spare, worker 3."""

    spec: ClassVar[Any] = {"workers": WORKERS, "spares": 1}

    def test_a_ready_spare_takes_the_place_of_a_lost_pod_and_prepares(self) -> None:
        around = observed(*able(0, 1, 2), given=[pod(0), pod(2), pod(3)], stream=stream(workers=range(4)))
        decision = decided(job(training(worker_order=[0, 1, 2]), **self.spec), around)
        assert shape(decision) == ("Running", 2, 1, [1])
        assert decision.status.worker_order == [0, 3, 2]
        assert why(decision) == "attempt 2: training with 2 of 3 workers; worker 3 is starting"

    def test_a_lost_rank_starts_in_its_own_pod(self) -> None:
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods(workers=4))
        decision = decided(job(training(worker_order=[0, 1, 2]), **self.spec), around)
        assert decision.status.worker_order == [0, 1, 2]

    def test_one_that_is_ready_later_takes_the_place_of_a_pod_that_does_not_run(self) -> None:
        nowhere = pod(1, uid="uid-new", node=None, phase="Pending", worker_container=None)
        around = observed(*able(0, 2, attempt=2), given=[pod(0), nowhere, pod(2), pod(3)], attempt=2)
        late = decided(job(without(1, worker_order=[0, 1, 2]), **self.spec), around)
        assert (shape(late), late.status.worker_order) == (("Running", 3, 1, [1]), [0, 3, 2])
        early = decided(job(without(1, worker_order=[0, 1, 2], ago=2.0), **self.spec), around)
        assert early.status.attempt == 2


class TestElastic:
    """The job is elastic and has three workers."""

    spec: ClassVar[Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 4}}

    def test_scaling_down_leaves_workers_out_without_a_stop(self) -> None:
        around = observed(*able(0, 1, 2), given=all_pods())
        decision = decided(job(training(worker_order=[0, 1, 2]), workers=2, **self.spec), around)
        assert shape(decision) == ("Running", 2, 1, [2])
        assert why(decision) == "attempt 2: training with all 2 workers"
        assert (decision.status.restarts, decision.status.disruptions) == (0, 0)

    def test_growing_back_takes_them_in_without_a_stop(self) -> None:
        ready = said(2, "Starting", 2, ready=True)
        around = observed(*able(0, 1, attempt=2), ready, given=all_pods(), attempt=2)
        status = without(2, worker_order=[0, 1, 2], training_with=None)
        status = status.model_copy(update={"workers": WorkerCounts(desired=2)})
        decision = decided(job(status, workers=3, **self.spec), around)
        assert shape(decision) == ("Running", 3, 1, [])
        assert decision.events[0].message.endswith("before, the job continued with all 2 workers for 14 s")

    def test_growing_beyond_the_world_size_is_a_planned_stop(self) -> None:
        around = observed(*able(0, 1, 2), given=all_pods(workers=4))
        decision = decided(job(training(worker_order=[0, 1, 2]), workers=4, **self.spec), around)
        assert (decision.status.phase, decision.status.resizing) == ("Restarting", True)

    def left_out(self, *given: PodView, **fields: Any) -> Decision:
        """Decides after a loss of worker 1. The job had scaled down to 2 workers, and the spare, worker 2, can join."""
        reports = (*able(0, attempt=2, **fields), said(2, "Starting", 2, ready=True))
        status = without(1, worker_order=[0, 1, 2], absent_ranks=[1, 2])
        around = observed(*reports, given=given, attempt=2, stream=stream(workers=(0, 2)))
        return decided(job(status, workers=2, spares=1, **self.spec), around)

    def test_a_worker_that_was_left_out_takes_the_place_of_one_that_is_lost(self) -> None:
        nowhere = pod(1, uid="uid-new", node=None, phase="Pending", worker_container=None)
        decision = self.left_out(pod(0), nowhere, pod(2))
        assert shape(decision) == ("Running", 3, 1, [1])
        assert why(decision).startswith("attempt 3: training with all 2 workers; continued with 1 of 2 workers")

    def test_one_that_was_left_out_is_a_spare(self) -> None:
        reports = (*able(0, 1, attempt=2), said(2, "Starting", 2, ready=True))
        around = observed(*reports, given=all_pods(), attempt=2)
        of = job(without(2, worker_order=[0, 1, 2]), workers=2, spares=1, **self.spec)
        decision = decided(of, around)
        assert (shape(decision), decision.status.workers.spares) == (("Running", 2, 1, [2]), 1)
        # All ranks start again, without worker 1.
        anew = observed(said(0, "Failed", 2), said(2, "Starting", 2), given=[pod(0), pod(2)], attempt=2)
        assert decided(of, anew).status.worker_order == [0, 2]

    def test_ranks_that_cannot_continue_are_stopped_to_scale_down(self) -> None:
        around = observed(said(0, "Running"), said(1, "Running"), said(2, "Running"), given=all_pods())
        decision = decided(job(training(worker_order=[0, 1, 2]), workers=2, **self.spec), around)
        assert decision.status.resizing


class TestAWorkerThatTrainsAlone:
    """Attempt 2 trains with worker 0 alone. Then its node can't be reached, but its ranks don't need any other."""

    lost = pod(0, deleting=True, deadline=NOW + 30, disruption="DeletionByTaintManager")
    #: The sum is ALONE_SECONDS + UNSEEN_SECONDS, and the ranks' grace period.
    until = 120 + 30 + 55

    def decided(self, status: JobStatus, after: float, view: PodView = lost, **spec: Any) -> Decision:
        given = [view, pod(1), *([pod(2)] if spec else [])]
        spare = stream(workers=range(3)) if spec else stream(workers=range(2))
        around = observed(*able(0, attempt=2), said(1, "Starting", 2), given=given, attempt=2, stream=spare)
        return decided(job(status, workers=2, **spec), around, NOW + after)

    def alone(self, **fields: Any) -> JobStatus:
        return without(1, workers=2, **fields)

    def test_no_spare_takes_its_place_while_it_may_train_on(self) -> None:
        alone = self.alone(worker_order=[0, 1])
        held = self.decided(alone, 0, spares=1)
        assert held.status.phase == "Restarting"
        assert "; its unreachable ranks may keep training for 205 s, so the next attempt waits" in why(held)
        assert held.requeue_after is not None and held.requeue_after <= self.until
        assert self.decided(held.status, self.until - 1, spares=1).status.attempt == 2
        late = self.decided(held.status, self.until + 1, spares=1)
        assert (late.status.attempt, late.status.worker_order) == (3, [2, 1])

    def test_its_pod_is_deleted_by_force_only_then(self) -> None:
        held = self.decided(self.alone(), 0).status
        assert "Delete bert-0 by force" not in kinds(self.decided(held, self.until - 1))
        assert "Delete bert-0 by force" in kinds(self.decided(held, self.until + 1))

    def test_an_elastic_job_does_not_go_on_without_it_either(self) -> None:
        spec: dict[str, Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 2}}
        held = self.decided(self.alone(worker_order=[0, 1]), 0, **spec).status
        assert self.decided(held, self.until - 1, **spec).status.attempt == 2
        assert self.decided(held, self.until + 1, **spec).status.attempt == 3

    @pytest.mark.parametrize(
        "view",
        [
            pod(0, deleting=True, deadline=NOW + 30, worker_container=container("terminated", end=ended(143))),
            pod(0, uid="uid-new"),
        ],
        ids=["its container has ended", "its pod is gone"],
    )
    def test_nobody_waits_for_ranks_that_have_ended(self, view: PodView) -> None:
        assert self.decided(self.alone(worker_order=[0, 1]), 0, view, spares=1).status.attempt == 3

    def test_nobody_waits_for_ranks_that_need_others(self) -> None:
        around = observed(
            *able(0, 1, attempt=2),
            said(2, "Starting", 2),
            given=[self.lost, replace(self.lost, worker=1, name="bert-1", uid="uid-1"), pod(2), pod(3), pod(4)],
            attempt=2,
            stream=stream(workers=range(5)),
        )
        of = job(without(2, worker_order=[0, 1, 2]), workers=WORKERS, spares=2)
        assert decided(of, around).status.attempt == 3


class TestNodes:
    def test_a_worker_on_a_node_that_is_to_be_avoided_is_replaced_while_the_others_train(self) -> None:
        policy = {"nodes": {"quarantineAfter": 1}}
        hung = said(1, "Failed", rank=1, reason="Hung", exit_code=68)
        facts = job(training(), workers=WORKERS, failurePolicy=policy)
        decision = decided(facts, observed(*able(0, 2), hung, given=all_pods()))
        assert shape(decision) == ("Running", 2, 1, [1])
        assert decision.status.replacing_pod_uids == ["uid-1"]
        assert "Delete bert-1" in kinds(decision)


class TestBooks:
    def test_a_continued_attempt_is_the_same_training(self) -> None:
        """Any group may do the step: the time between two reports is productive."""
        progress = {"attempt": 1, "step": 100, "furthestStep": 100, "reportedAt": "2026-11-21T04:00:00Z"}
        spent = {"until": "2026-11-21T04:00:00Z"}
        began = {"start_time": "2026-11-21T04:00:00Z", "progress": progress, "time_spent": spent}
        around = observed(*able(0, 2), said(1, "Failed", rank=1), given=all_pods())
        facts = job(training(**began), workers=WORKERS)
        first = decided(facts, around).status
        now = observed(
            *able(0, 2, attempt=2),
            given=all_pods(),
            attempt=2,
            progress={0: {0: RankProgress(step=130)}},
            progress_attempt=2,
            progress_at=NOW + 9,
        )
        second = decided(replace(facts, status=first), now, NOW + 9).status
        assert second.time_spent is not None
        assert (second.time_spent.recompute, second.time_spent.load, second.time_spent.restart) == (None, None, None)
        assert second.time_spent.productive == pytest.approx(9.0, abs=0.1)
