"""A transition sets some fields of the status and keeps the others, and uses the status' own names for them."""

from __future__ import annotations

from tests.unit.reconciling.builders import NOW, all_up, decided, job, observed, running
from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.reconciling.transition import NO_WAIT, StatusChange, condition, with_condition


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


def test_the_time_moves_only_with_the_status() -> None:
    first = with_condition([], "Running", "False", "Pending", "a", now=NOW, generation=1)
    second = with_condition(first, "Running", "False", "Starting", "b", now=NOW + 50, generation=1)
    third = with_condition(second, "Running", "True", "AllRanksUp", "c", now=NOW + 60, generation=2)
    assert second[0].last_transition_time == first[0].last_transition_time == to_whole_text(NOW)
    assert (second[0].reason, second[0].message) == ("Starting", "b")
    assert third[0].last_transition_time == to_whole_text(NOW + 60)
    assert third[0].observed_generation == 2


def test_others_stay_as_they_are() -> None:
    foreign = with_condition([], "example.com/Audited", "True", "Yes", "", now=NOW, generation=1)
    status = decided(job(running(conditions=[item.model_dump() for item in foreign])), observed(*all_up())).status
    assert condition(status.conditions, "example.com/Audited") == foreign[0]


def test_a_running_job_is_accepted_and_running() -> None:
    status = decided(job(running(phase="Starting")), observed(*all_up())).status
    shown = {item.type: (item.status, item.reason) for item in status.conditions}
    assert shown == {"Running": ("True", "AllRanksUp"), "Accepted": ("True", "SpecAccepted")}
