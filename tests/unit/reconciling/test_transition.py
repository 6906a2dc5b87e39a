"""A change of the status: what it sets, what it leaves, and that it names the status' own fields."""

from __future__ import annotations

from typing import get_type_hints

from tests.unit.reconciling.builders import running
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.transition import NO_WAIT, StatusChange, Unset


def test_it_has_the_fields_of_a_status_with_their_types() -> None:
    status, change = get_type_hints(JobStatus), get_type_hints(StatusChange)
    assert change == {name: status[name] | Unset for name in JobStatus.model_fields}


def test_none_is_a_value_and_what_isnt_set_stays() -> None:
    status = running(restarts=2, next_attempt_time="2026-11-21T04:00:00Z", resizing=True)
    changed = StatusChange(next_attempt_time=None, restarts=3).apply(status)
    assert (changed.next_attempt_time, changed.restarts, changed.resizing) == (None, 3, True)
    assert StatusChange().apply(status) == status


def test_of_two_changes_the_later_counts() -> None:
    both = StatusChange(resizing=True, restarts=1) | NO_WAIT
    assert (both.resizing, both.restarts) == (None, 1)
    assert both
    assert not StatusChange()
