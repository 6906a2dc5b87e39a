"""Ranks are ordered by topology, so that neighbours in rank are near, and nobody trains before the order is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.reconciling.builders import decided, job, kinds, observed, pod, pods, running, said, settled, stream
from trainmaster_operator.reconciling.decision import Assign, Decision
from trainmaster_operator.reconciling.observed.snapshot import Observed
from trainmaster_operator.wire.assignment import Assignment

PACK: dict[str, Any] = {"workers": 4, "scheduling": {"topology": {"key": "rack"}}}
FRESH: dict[str, Any] = {"phase": "Pending", "pod_uids": [], "pod_restart_counts": [], "workers": 4}
RACKS = {"node-0": "b", "node-1": "a", "node-2": "b", "node-3": None}


def placed(domains: dict[str, str | None], **fields: Any) -> Observed:
    given = {"given": pods(workers=4), "stream": stream(workers=range(4)), **fields}
    return replace(observed(**given), domains=domains)


def assigned(decision: Decision) -> Assignment:
    (found,) = [action.assignment for action in decision.actions if isinstance(action, Assign)]
    return found


def test_pods_are_held_until_their_places_are_known() -> None:
    made = decided(job(**PACK), observed(given=(), stream=stream(workers=())))
    assert kinds(made) == ["Apply Service", "Apply StatefulSet x4"]
    # The pods have their assignment, so nothing is sent and nothing begins.
    waiting = settled(job(running(**FRESH), **PACK), placed({"node-0": "b"}))
    assert {pod.assignment.attempt for pod in waiting.pods if pod.assignment} == {0}
    assert {pod.assignment.state for pod in waiting.pods if pod.assignment} == {"Hold"}
    decision = decided(job(running(**FRESH), **PACK), waiting)
    assert (kinds(decision), decision.status.pod_uids) == ([], [])


def test_the_first_attempt_is_assigned_by_domain_and_keeps_its_number() -> None:
    decision = decided(job(running(**FRESH), **PACK), placed(RACKS))
    assignment = assigned(decision)
    assert (assignment.attempt, assignment.state) == (1, "Run")
    assert assignment.workers == (0, 2, 1, 3)
    assert [host.partition(".")[0] for host in assignment.hosts] == ["bert-0", "bert-2", "bert-1", "bert-3"]
    assert decision.status.worker_order == [0, 2, 1, 3]
    assert decision.status.pod_uids == ["uid-0", "uid-2", "uid-1", "uid-3"]


def test_where_nodes_cant_be_read_the_order_stays() -> None:
    assert assigned(decided(job(running(**FRESH), **PACK), placed(dict.fromkeys(RACKS)))).workers == (0, 1, 2, 3)


def test_a_worker_that_comes_back_elsewhere_finds_its_new_place() -> None:
    status = running(workers=4, worker_order=[0, 2, 1, 3]).model_copy(
        update={"pod_uids": ["uid-0", "uid-2", "uid-1", "uid-3"]}
    )
    around = placed({**RACKS, "node-9": "a"}, given=pods(pod(2, uid="new", node="node-9"), workers=4))
    decision = decided(job(status, **PACK), around)
    assert decision.status.attempt == 2
    assert decision.status.worker_order == [0, 1, 2, 3]
    homeless = placed(RACKS, given=pods(pod(2, uid="new", node=None, phase="Pending"), workers=4))
    assert decided(job(status, **PACK), homeless).status.phase == "Restarting"
    unread = placed(RACKS, given=pods(pod(2, uid="new", node="node-9"), workers=4))
    assert decided(job(status, **PACK), unread).status.phase == "Restarting"


def test_an_elastic_group_that_is_whole_isnt_resized_for_its_order() -> None:
    status = running(workers=4, worker_order=[0, 2, 1, 3], ago=1000).model_copy(
        update={"pod_uids": ["uid-0", "uid-2", "uid-1", "uid-3"]}
    )
    elastic = {**PACK, "elastic": {"minWorkers": 2, "maxWorkers": 4}}
    reports = tuple(said(worker, "Running") for worker in range(4))
    around = replace(observed(*reports, given=pods(workers=4), stream=stream(workers=range(4))), domains=RACKS)
    decision = decided(job(status, **elastic), around)
    assert (decision.status.phase, decision.status.attempt) == ("Running", 1)
    starting = status.model_copy(update={"phase": "Starting"})
    assert decided(job(starting, **elastic), around).status.attempt == 1
