"""The operator writes a job's children, and leaves other objects alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    SETTINGS,
    all_up,
    container,
    decided,
    job,
    kinds,
    observed,
    pod,
    pods,
    running,
    settled,
)
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.decision import Apply
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Observed
from trainmaster_operator.rendering import AgentConfigMap

GROUPS = [{"name": "a", "workers": 1}, {"name": "b", "workers": 2}]


def child(around: Observed, kind: str) -> ChildView:
    return next(item for item in around.children if item.kind == kind)


def with_child(around: Observed, kind: str, **changes: Any) -> Observed:
    children = [replace(item, **changes) if item.kind == kind else item for item in around.children]
    return replace(around, children=tuple(children))


class TestChildren:
    def test_each_group_becomes_a_set(self) -> None:
        decision = decided(
            job(workerGroups=GROUPS, training={"lr": 0.1}, image="ghcr.io/trainmaster/trainer:1"), Observed()
        )
        assert kinds(decision) == ["Apply Service", "Apply ConfigMap", "Apply StatefulSet x1", "Apply StatefulSet x2"]

    @pytest.mark.parametrize(
        ("changes", "action"),
        [
            ({"rendered_hash": "other"}, ["Apply StatefulSet x2"]),
            ({"replicas": 5}, ["Apply StatefulSet x2"]),
            ({"owner_uid": "somebody-else", "rendered_hash": ""}, ["Apply StatefulSet x2"]),
            ({"deleting": True, "rendered_hash": "other"}, []),
            ({}, []),
        ],
    )
    def test_a_child_is_applied_where_it_isnt_as_rendered(self, changes: dict[str, Any], action: list[str]) -> None:
        of = job(running())
        around = with_child(settled(of, observed(*all_up())), "StatefulSet", **changes)
        assert kinds(decided(of, around)) == action

    def test_a_child_that_somebody_deleted_comes_back(self) -> None:
        of = job(running())
        around = settled(of, observed(*all_up()))
        less = replace(around, children=tuple(item for item in around.children if item.kind != "Service"))
        assert kinds(decided(of, less)) == ["Apply Service"]

    def test_an_object_of_somebody_else_is_left_alone_under_a_suspended_job(self) -> None:
        of = job(running(phase="Suspended"), runPolicy={"suspend": True})
        around = with_child(settled(job(running()), observed(given=[])), "StatefulSet", owner_uid="somebody-else")
        assert kinds(decided(of, around)) == []


OWN = SETTINGS.agent
EARLIER = AgentConfigMap(f"trainmaster-agent-{'0123456789abcdef' * 4}")
LATER = replace(SETTINGS, agent=AgentConfigMap(f"trainmaster-agent-{'f' * 64}"))


def with_agent(around: Observed, agent: AgentConfigMap | None) -> Observed:
    sets = [replace(child, agent=agent) if child.kind == "StatefulSet" else child for child in around.children]
    return replace(around, children=tuple(sets))


def waiting(seconds: float, **fields: Any) -> Observed:
    """Returns two pods, one of which has had a node for so long without a container."""
    given = pod(
        1,
        phase="Pending",
        scheduled_at=NOW - seconds,
        worker_container=container("waiting", reason="ContainerCreating"),
        **fields,
    )
    return with_agent(settled(job(running(phase="Starting")), observed(given=pods(given))), OWN)


def test_an_operator_of_another_version_leaves_the_sets_of_running_jobs_as_they_are() -> None:
    of = job(running())
    around = with_agent(settled(of, observed(*all_up())), OWN)
    assert kinds(decide(of, around, NOW, LATER)) == []


def test_the_next_attempt_has_the_agent_of_the_one_before() -> None:
    of = job(running(attempt=2))
    around = with_agent(settled(job(running()), observed(*all_up())), EARLIER)
    (manifest,) = (
        action.manifest
        for action in decide(of, around, NOW, LATER).actions
        if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet"
    )
    assert EARLIER.name in str(manifest)
    assert LATER.agent.name not in str(manifest)


def test_a_pod_that_waits_for_its_container_has_its_agent_looked_for() -> None:
    of = job(running(phase="Starting"))
    early = decided(of, waiting(2.0))
    assert kinds(early) == []
    assert early.requeue_after == pytest.approx(1.0)
    late = decided(of, waiting(3.0))
    assert kinds(late) == [f"Ensure {OWN.name}"]
    assert late.requeue_after == pytest.approx(10.0)


@pytest.mark.parametrize(
    "around",
    [
        with_agent(waiting(9.0), None),
        waiting(9.0, deleting=True),
        with_agent(settled(job(running()), observed(*all_up())), OWN),
    ],
    ids=["the bundled image", "a pod that goes", "containers that run"],
)
def test_nothing_is_looked_for_that_no_pod_waits_for(around: Observed) -> None:
    assert not [kind for kind in kinds(decided(job(running(phase="Starting")), around)) if kind.startswith("Ensure")]


def test_a_job_that_is_over_needs_no_agent() -> None:
    of = job(running(phase="Suspended"), runPolicy={"suspend": True})
    assert not [kind for kind in kinds(decided(of, waiting(9.0))) if kind.startswith("Ensure")]
