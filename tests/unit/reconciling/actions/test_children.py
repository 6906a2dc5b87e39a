"""The job's children: what is written, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    all_up,
    decided,
    job,
    kinds,
    observed,
    running,
    settled,
)
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Observed

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
