"""A spare takes a lost worker's place: the next attempt's lineup and the policy `stand_in` choose it."""

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
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import Assign, Decision
from trainmaster_operator.reconciling.observed.snapshot import Job, Observed, PodView
from trainmaster_operator.wire.assignment import Assignment

CREATING = container("waiting", reason="ContainerCreating")


def with_spare(status: JobStatus | None = None, spares: int = 1, **spec: Any) -> Job:
    """Returns a job of two workers and a spare, `bert-2`."""
    return job(status or running(worker_order=[0, 1]), spares=spares, **spec)


def around(*given: PodView, without: tuple[int, ...] = (), of: int = 3, **fields: Any) -> Observed:
    """Returns all pods, with the given ones in their places, and every rank up."""
    present = tuple(each for each in pods(*given, workers=of) if each.worker not in without)
    fields.setdefault("stream", stream(workers=[each.worker for each in present]))
    return observed(*all_up(), given=present, **fields)


def assigned(decision: Decision) -> Assignment:
    """Returns the assignment that is sent."""
    [assignment] = [action.assignment for action in decision.actions if isinstance(action, Assign)]
    return assignment


def test_a_new_job_has_pods_for_its_spares_too_and_trains_without_them() -> None:
    decision = decided(job(spares=2), Observed())
    assert kinds(decision) == ["Apply Service", "Apply StatefulSet x4"]
    assert decision.status.worker_order == [0, 1]
    assert "2 workers" in decision.status.conditions[-1].message


def test_the_job_runs_before_its_spares_do() -> None:
    fresh = running(phase="Pending", pod_uids=[], pod_restart_counts=[], worker_order=[0, 1])
    absent = decided(with_spare(fresh), around(pod(2, node=None, worker_container=None, unschedulable="0/2 nodes")))
    assert absent.status.phase == "Running"
    assert absent.status.workers.model_dump() == {"desired": 2, "created": 2, "running": 2, "finished": 0, "spares": 0}
    assert absent.status.replicas == 2, "the scale subresource counts workers"
    assert decided(with_spare(), around()).status.workers.spares == 1


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param({"without": (1,)}, id="gone"),
        pytest.param({"given": pod(1, uid="new", worker_container=None)}, id="replaced, not running yet"),
        pytest.param({"given": pod(1, phase="Failed", reason="Evicted")}, id="evicted"),
        pytest.param(
            {"given": pod(1, deleting=True, deadline=NOW + 30, disruption="DeletionByTaintManager")}, id="node lost"
        ),
    ],
)
def test_a_spare_takes_a_lost_pods_place_at_once(lost: dict[str, Any]) -> None:
    given = [lost["given"]] if "given" in lost else []
    decision = decided(with_spare(), around(*given, without=lost.get("without", ())))
    status = decision.status
    assert (status.phase, status.attempt, status.restarts, status.disruptions) == ("Starting", 2, 0, 1)
    assert status.worker_order == [0, 2]
    assert status.pod_uids == ["uid-0", "uid-2"]
    assert assigned(decision).workers == (0, 2)
    assert assigned(decision).hosts == ("bert-0.bert.ml.svc", "bert-2.bert.ml.svc")
    assert "spare 2 takes the place of worker 1" in status.conditions[0].message
    assert status.workers.spares == 0, "it is no spare any more"


def test_the_leaders_place_is_taken_too() -> None:
    decision = decided(with_spare(), around(without=(0,)))
    assert assigned(decision).workers == (2, 1)
    assert assigned(decision).master == "bert-2.bert.ml.svc"


def test_the_pod_that_comes_back_is_the_spare() -> None:
    of = with_spare(running(2, worker_order=[0, 2], pod_uids=["uid-0", "uid-2"]))
    back = around(pod(1, uid="new"), stream=stream(2, workers=(0, 2)), attempt=2)
    quiet = decided(of, settled(of, back))
    assert quiet.status.attempt == 2
    assert quiet.status.workers.spares == 1
    again = decided(of, around(pod(1, uid="new"), without=(2,), attempt=2))
    assert again.status.worker_order == [0, 1]
    assert again.status.pod_uids == ["uid-0", "new"]


def test_a_lost_spare_changes_nothing_of_the_training() -> None:
    of = with_spare()
    decision = decided(of, settled(of, around(without=(2,))))
    assert (decision.status.attempt, decision.status.phase, decision.status.disruptions) == (1, "Running", 0)
    assert decision.actions == ()


@pytest.mark.parametrize(
    "spare",
    [
        pytest.param(pod(2, node=None, worker_container=None), id="no node"),
        pytest.param(pod(2, worker_container=CREATING), id="not running"),
        pytest.param(pod(2, deleting=True), id="leaving"),
    ],
)
def test_a_spare_that_isnt_ready_leaves_everything_as_without_spares(spare: PodView) -> None:
    decision = decided(with_spare(), around(spare, without=(1,)))
    assert (decision.status.phase, decision.status.attempt) == ("Restarting", 1)
    replaced = around(spare, pod(1, uid="new", worker_container=CREATING))
    opened = decided(replace(with_spare(), status=decision.status), replaced)
    assert (opened.status.attempt, opened.status.worker_order) == (2, [0, 1])


def test_it_may_become_ready_while_the_group_waits() -> None:
    held = decided(with_spare(), around(pod(2, worker_container=CREATING), without=(1,)))
    decision = decided(replace(with_spare(), status=held.status), around(without=(1,)))
    assert decision.status.worker_order == [0, 2]


def test_of_two_lost_workers_the_one_whose_pod_is_missing_gets_the_spare() -> None:
    of = with_spare(running(worker_order=[0, 1, 2], workers=3), workers=3)
    both = decided(of, around(without=(0, 2), of=4))
    assert (both.status.phase, both.status.attempt) == ("Restarting", 1)
    one = around(pod(0, uid="new", worker_container=CREATING), without=(2,), of=4)
    opened = decided(replace(of, status=both.status), one)
    assert opened.status.worker_order == [0, 1, 3]
    assert opened.status.disruptions == 1


def test_ranks_save_their_checkpoint_before_a_spare_takes_an_evicted_pods_place() -> None:
    leaving = pod(1, deleting=True, deadline=NOW + 30, disruption="EvictionByEvictionAPI")
    held = decided(with_spare(), around(leaving))
    assert held.status.phase == "Restarting"
    assert assigned(held).state == "Hold"
    assert assigned(held).grace_seconds == 55, "as every planned stop"
    of = replace(with_spare(), status=held.status)
    some = observed(said(0, "Stopped"), said(1, "Running"), given=pods(leaving, workers=3))
    waiting = decided(of, some)
    assert waiting.status.phase == "Restarting"
    assert waiting.requeue_after == pytest.approx(30), "the grace period's end"
    gone = observed(said(0, "Running"), said(1, "Stopped"), given=[pod(0), pod(2)], gone={leaving.uid: leaving})
    assert decided(of, gone).status.phase == "Restarting", "worker 0 saves for as long, and began later"
    left = observed(said(0, "Stopped"), said(1, "Stopped"), given=pods(leaving, workers=3))
    assert decided(of, left).status.worker_order == [0, 2]
    assert decided(of, some, NOW + 30.5).status.worker_order == [0, 2]


def test_a_spare_on_a_node_that_isnt_avoided_and_whose_agent_has_joined_comes_first() -> None:
    avoiding = running(worker_order=[0, 1], avoided_nodes=["node-2"], node_failures={"node-2": 3})
    assert decided(with_spare(avoiding, 2), around(without=(1,), of=4)).status.worker_order == [0, 3]
    joined = around(without=(1,), of=4, stream=stream(workers=(0, 3)))
    assert decided(with_spare(spares=2), joined).status.worker_order == [0, 3]
    assert decided(with_spare(avoiding), around(without=(1,))).status.worker_order == [0, 2], "there is no other"


class TestReplacedByTheOperator:
    """The next attempt uses a spare while the operator replaces the pod."""

    def test_a_pod_that_the_kubelet_would_keep_waiting(self) -> None:
        report = said(1, "Failed", exit_code=1)
        waiting = container("terminated", restarts=2, end=ended(1, report=report))
        decision = decided(with_spare(), around(pod(1, worker_container=waiting)))
        assert (decision.status.attempt, decision.status.restarts) == (2, 1)
        assert decision.status.worker_order == [0, 2]
        assert decision.status.replacing_pod_uids == ["uid-1"]
        assert "Delete bert-1" in kinds(decision)
        assert "bert-1" not in str([action.pods for action in decision.actions if isinstance(action, Assign)])

    def test_a_pod_whose_agent_was_killed_again(self) -> None:
        killed = container("terminated", restarts=1, end=ended(137))
        decision = decided(with_spare(), around(pod(1, worker_container=killed)))
        assert decision.status.worker_order == [0, 2]
        assert "Delete bert-1" in kinds(decision)

    def test_but_not_where_only_spares_run_which_have_nothing_in_memory(self) -> None:
        killed = container("terminated", restarts=1, end=ended(137))
        both = [pod(worker, worker_container=killed) for worker in (0, 1)]
        decision = decided(with_spare(), around(*both))
        assert decision.status.worker_order == [0, 1]
        assert decision.status.replacing_pod_uids == []

    def test_a_pod_on_a_node_that_is_avoided_from_now_on(self) -> None:
        policy = {"nodes": {"quarantineAfter": 1}}
        failed = observed(said(0, "Running"), said(1, "Failed", reason="Hung", exit_code=68), given=pods(workers=3))
        decision = decided(with_spare(failurePolicy=policy), failed)
        assert decision.status.avoided_nodes == ["node-1"]
        assert decision.status.worker_order == [0, 2]
        assert "Delete bert-1" in kinds(decision)

    def test_a_pod_whose_agent_doesnt_answer(self) -> None:
        silent = said(1, "Failed", reason="AgentLost", exit_code=None, error="no answer")
        found = observed(said(0, "Running"), silent, given=pods(workers=3), stream=stream(workers=(0, 2)))
        decision = decided(with_spare(), found)
        assert decision.status.worker_order == [0, 2]
        assert "Delete bert-1" in kinds(decision)

    def test_it_is_over_when_the_pod_is_gone(self) -> None:
        status = running(2, worker_order=[0, 2], pod_uids=["uid-0", "uid-2"], replacing_pod_uids=["uid-1"])
        of = with_spare(status)
        back = around(pod(1, uid="new"), stream=stream(2, workers=(0, 1, 2)), attempt=2)
        assert decided(of, settled(of, back)).actions == ()


class TestAWorkerThatDoesntCome:
    STARTING = running(phase="Starting", ago=30.0, worker_order=[0, 1], pod_uids=[], pod_restart_counts=[])

    def test_has_no_node_for_too_long(self) -> None:
        nowhere = pod(1, node=None, worker_container=None, unschedulable="0/2 nodes are available")
        early = decided(with_spare(self.STARTING), around(nowhere))
        assert early.status.attempt == 1
        assert early.requeue_after == pytest.approx(10.0), "nodes.lostAfterSeconds after the start"
        late = decided(with_spare(self.STARTING), around(nowhere), NOW + 10.1)
        assert (late.status.attempt, late.status.worker_order) == (2, [0, 2])
        assert (late.status.restarts, late.status.disruptions) == (0, 0)
        assert "Delete bert-1" not in kinds(late), "it may find a node, and is a spare then"

    def test_or_isnt_made_at_all(self) -> None:
        late = decided(with_spare(self.STARTING), around(without=(1,)), NOW + 10.1)
        assert late.status.worker_order == [0, 2]

    def test_or_has_an_agent_that_doesnt_join(self) -> None:
        """Its node is gone, but Kubernetes doesn't know that yet."""
        broken = {"attempt": 1, "reason": "PeerLost", "worker": 0, "failed_at": to_text(NOW - 6)}
        status = running(2, phase="Starting", ago=6.0, worker_order=[0, 1], restarts=1, failures=[broken])
        found = observed(said(0, "Starting", 2), given=pods(workers=3), stream=stream(2, workers=(0, 2)), attempt=2)
        decision = decided(with_spare(status), found)
        assert decision.status.worker_order == [0, 2]
        assert "Delete bert-1" in kinds(decision)
        assert (decision.status.restarts, decision.status.disruptions) == (0, 1), "all of it is one disruption"
        assert [(failure.reason, failure.node) for failure in decision.status.failures] == [("NodeLost", "node-1")]

    @pytest.mark.parametrize(
        ("ago", "joined"),
        [(3.0, (0, 2)), (6.0, (0, 1, 2)), (6.0, (0,))],
        ids=["too early", "joined", "the spare is silent too"],
    )
    def test_but_is_awaited_where_the_spare_isnt_better(self, ago: float, joined: tuple[int, ...]) -> None:
        status = running(2, phase="Starting", ago=ago, worker_order=[0, 1])
        found = observed(said(0, "Starting", 2), given=pods(workers=3), stream=stream(2, workers=joined), attempt=2)
        assert decided(with_spare(status), found).status.attempt == 2

    def test_is_no_reason_to_give_nodes_back_where_it_is_a_spare(self) -> None:
        nowhere = pod(2, node=None, worker_container=None, unschedulable="0/2 nodes are available")
        status = running(phase="Starting", ago=800.0, worker_order=[0, 1])
        found = observed(said(0, "Starting"), said(1, "Starting"), given=pods(nowhere, workers=3))
        assert decided(with_spare(status), found).status.scheduling_backoff is None


ELASTIC: dict[str, Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 4}}


class TestElastic:
    def test_shrinks_only_after_its_spares_are_used_up(self) -> None:
        both = around(without=(0, 1))
        held = decided(with_spare(**ELASTIC), both)
        assert held.status.phase == "Restarting"
        of = replace(with_spare(**ELASTIC), status=held.status)
        assert decided(of, both, NOW + 39).status.attempt == 1
        shrunk = decided(of, both, NOW + 41)
        assert (shrunk.status.attempt, shrunk.status.worker_order) == (2, [2])

    def test_grows_by_its_spares_first(self) -> None:
        status = running(2, worker_order=[0], pod_uids=["uid-0"])
        found = observed(
            said(0, "Running", 2), given=pods(pod(1, node=None, worker_container=None), workers=3), attempt=2
        )
        resizing = decided(with_spare(status, **ELASTIC), found)
        assert resizing.status.resizing
        stopped = observed(
            said(0, "Stopped", 2), given=pods(pod(1, node=None, worker_container=None), workers=3), attempt=2
        )
        grown = decided(replace(with_spare(**ELASTIC), status=resizing.status), stopped)
        assert grown.status.worker_order == [0, 2]

    def test_scaling_up_takes_the_spare_and_asks_for_a_new_one(self) -> None:
        of = with_spare(workers=3, **ELASTIC)
        decision = decided(of, around())
        assert decision.status.resizing
        assert "Apply StatefulSet x4" in kinds(decision)

    def test_doesnt_stop_to_grow_by_a_pod_that_is_being_replaced(self) -> None:
        status = running(2, worker_order=[0, 2], pod_uids=["uid-0", "uid-2"], replacing_pod_uids=["uid-1"])
        of = with_spare(status, workers=3, **ELASTIC)
        assert decided(of, around(attempt=2)).status.phase == "Running"

    def test_a_spare_that_is_to_grow_the_group_stands_in_for_nobody(self) -> None:
        """Otherwise its index would be in the assignment twice."""
        of = with_spare(workers=3, **ELASTIC)
        decision = decided(of, around(pod(0, phase="Failed", reason="Evicted")))
        assert decision.status.worker_order == [0, 1]
        given = pods(pod(0, uid="new", node=None, worker_container=None), workers=3)
        found = observed(said(1, "Stopped"), given=given)
        assert decided(replace(of, status=decision.status), found, NOW + 60).status.worker_order == [1, 2]

    def test_scaling_down_keeps_who_has_an_index(self) -> None:
        status = running(2, worker_order=[0, 3, 2], pod_uids=["uid-0", "uid-3", "uid-2"])
        of = with_spare(status, **ELASTIC)
        decision = decided(of, around(of=4, attempt=2))
        assert decision.status.resizing
        stopped = observed(*(said(worker, "Stopped", 2) for worker in (0, 3, 2)), given=pods(workers=4), attempt=2)
        assert decided(replace(of, status=decision.status), stopped).status.worker_order == [0, 2]


def test_a_spare_stands_in_for_workers_of_its_own_group_only() -> None:
    groups = [{"name": "a", "workers": 1, "spares": 1}, {"name": "b", "workers": 1, "spares": 1}]
    sets = {0: "bert-a", 1: "bert-a", 2: "bert-b", 3: "bert-b"}
    given = [pod(worker, name=f"{name}-{worker}", set_name=name) for worker, name in sets.items()]
    of = job(running(worker_order=[0, 2], pod_uids=["uid-0", "uid-2"]), workerGroups=groups)
    found = observed(said(0, "Running"), said(2, "Running"), given=[given[0], given[1], given[3]])
    decision = decided(of, found)
    assert assigned(decision).workers == (0, 3)
    assert assigned(decision).hosts == ("bert-a-0.bert.ml.svc", "bert-b-3.bert.ml.svc")
    none = decided(of, observed(said(0, "Running"), said(2, "Running"), given=given[:2]))
    assert none.status.phase == "Restarting"


def test_the_ranks_of_a_stand_in_follow_the_topology() -> None:
    of = with_spare(
        running(worker_order=[0, 1, 2], workers=3), workers=3, scheduling={"topology": {"key": "example.com/rack"}}
    )
    domains = {"node-0": "a", "node-1": "b", "node-2": "b", "node-3": "a"}
    decision = decided(of, around(without=(1,), of=4, domains=domains))
    assert decision.status.worker_order == [0, 3, 2], "worker 3 is worker 0's neighbour"


def test_a_suspended_job_has_no_spares_either() -> None:
    of = with_spare(runPolicy={"suspend": True})
    assert "Apply StatefulSet x0" in kinds(decided(of, settled(of, around())))


def test_a_silent_container_back_off_of_a_planned_stop_keeps_its_grace() -> None:
    """Pods that a spare has replaced aren't in the attempt, so resizing the attempt is still a planned stop."""
    status = running(
        2,
        worker_order=[0, 2],
        pod_uids=["uid-0", "uid-2"],
        replacing_pod_uids=["uid-1"],
        failures=[{"attempt": 1, "reason": "Error", "failed_at": to_text(NOW - 100)}],
    )
    of = with_spare(status, workers=3, **ELASTIC)
    decision = decided(of, around(pod(1, uid="new"), of=4, attempt=2))
    assert decision.status.resizing
    assert assigned(decision).grace_seconds == 55


def test_the_order_of_the_racks_doesnt_wait_for_a_spare() -> None:
    fresh = running(phase="Pending", pod_uids=[], pod_restart_counts=[], worker_order=[0, 1])
    of = with_spare(fresh, scheduling={"topology": {"key": "example.com/rack"}})
    nowhere = pod(2, node=None, worker_container=None, unschedulable="0/2 nodes are available")
    found = observed(given=pods(nowhere, workers=3), domains={"node-0": "b", "node-1": "a"})
    decision = decided(of, found)
    assert (decision.status.phase, decision.status.worker_order) == ("Starting", [0, 1])
    assert assigned(decision).state == "Run"
