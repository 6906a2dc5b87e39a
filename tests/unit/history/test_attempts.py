"""`history.statuses` finds the same attempts, whichever statuses were seen and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.history.recorded import START
from trainmaster.history.statuses import Attempt, merge_workers, observe, shown
from trainmaster_operator.api.records import PodPlace
from trainmaster_operator.api.times import to_text, to_whole_text
from trainmaster_operator.api.v1alpha1 import MAX_FAILURES

ENDS = ("counted", "disrupted", "suspended", "resized", "stopped")


@dataclass
class Life:
    """Simulates a job's life: the statuses that the operator writes, in order, and the true attempts."""

    ends: Sequence[str]
    final: str

    def __post_init__(self) -> None:
        self.now = START
        self.statuses: list[tuple[float, dict[str, Any]]] = []
        self.failures: list[dict[str, Any]] = []
        self.started: dict[int, str] = {}
        for attempt, end in enumerate((*self.ends, ""), 1):
            self.now += 10.0
            self.started[attempt] = to_text(self.now)
            base = {"attempt": attempt, "attemptStartTime": to_text(self.now)}
            self._write(base, "Starting")
            self.now += 2.5
            running = [{"type": "Running", "status": "True", "lastTransitionTime": to_whole_text(self.now)}]
            self._write(base, "Running", conditions=running)
            self.now += 60.0
            if end in ("counted", "disrupted"):
                failed = {"attempt": attempt, "reason": "Error", "counted": end == "counted"}
                self.failures.insert(0, {**failed, "failedAt": to_text(self.now)})
                self._write(base, "Restarting")
            elif end == "suspended":
                since = [{"type": "Suspended", "status": "True", "lastTransitionTime": to_whole_text(self.now)}]
                self._write(base, "Suspended", conditions=since)
                self.now += 30.0
                self._write({**base, "attemptStartTime": to_text(self.now)}, "Restarting")
            elif end:
                flag = {"resized": "resizing", "stopped": "stopping"}[end]
                self._write(base, "Running", conditions=running, **{flag: True})
            else:
                self._write(base, self.final, completionTime=to_text(self.now))

    def _write(self, base: Mapping[str, Any], phase: str, **more: Any) -> None:
        failures = [dict(failure) for failure in self.failures[:MAX_FAILURES]]
        self.statuses.append((self.now + 0.2, {**base, "phase": phase, "failures": failures, **more}))


LIVES = st.builds(Life, st.lists(st.sampled_from(ENDS), max_size=16), st.sampled_from(["Succeeded", "Failed"]))


def _seen(statuses: Sequence[tuple[float, Mapping[str, Any]]]) -> dict[int, Attempt]:
    known: dict[int, Attempt] = {}
    for at, status in statuses:
        known |= observe(status, known, at)
    return known


@settings(max_examples=50)
@given(LIVES)
def test_all_that_happened_is_known_to_who_saw_it_all(life: Life) -> None:
    known = _seen(life.statuses)
    assert sorted(known) == list(range(1, len(life.ends) + 2))
    answers = _shown(known, life.final)
    outcomes = {"counted": "Failed", "disrupted": "Disrupted", "suspended": "Suspended", "resized": "Resized"}
    wanted = [*(outcomes.get(end, "Restarted") for end in life.ends), life.final]
    assert [found["outcome"] for found in answers] == wanted
    assert [found["startedAt"] for found in answers] == list(life.started.values())
    for found in answers:
        assert found["startedAt"] <= found["runningAt"] <= found["endedAt"]


@given(st.data())
def test_statuses_that_were_missed_or_came_twice_change_nothing_that_is_known(data: st.DataObject) -> None:
    life = data.draw(LIVES)
    places = data.draw(st.lists(st.integers(0, len(life.statuses) - 1), min_size=1))
    seen = sorted({*places, len(life.statuses) - 1})
    known = _seen([life.statuses[place] for place in seen])
    # A batch without an acknowledgement is sent again, from any place.
    again = data.draw(st.integers(0, len(seen) - 1))
    repeated = _seen([life.statuses[place] for place in (*seen, *seen[again:])])
    assert repeated == known
    assert _seen([life.statuses[place] for place in sorted((*seen, *seen))]) == known
    # Only the last status has the newest failures and the job's end.
    full = _seen(life.statuses)
    for attempt in known:
        assert known[attempt].failure in (full[attempt].failure, None)
        if attempt > len(life.ends) - MAX_FAILURES:
            assert known[attempt].failure == full[attempt].failure
        assert known[attempt].started_at is None or known[attempt].started_at >= life.started[attempt]
    last = len(life.ends) + 1
    assert (known[last].ended_as, known[last].ended_at) == (full[last].ended_as, full[last].ended_at)
    assert [found["outcome"] for found in _shown(known, life.final)].count("Running") == 0


def _shown(known: Mapping[int, Attempt], phase: str) -> list[dict[str, Any]]:
    found = sorted(known.items())
    return [
        shown(attempt, own, following, phase=phase, deleted_at=None)
        for (attempt, own), following in zip(found, [*(own for _, own in found), None][1:], strict=True)
    ]


def test_an_attempt_that_trained_on_without_some_ends_when_they_join() -> None:
    failure = {"attempt": 1, "reason": "Signal", "failedAt": to_text(START)}
    known = observe({"attempt": 1, "phase": "Running", "attemptStartTime": to_text(START - 60)}, {}, START)
    shrunk = {"attempt": 2, "phase": "Running", "continues": 1, "trainingWith": "3 of 4 workers", "failures": [failure]}
    known |= observe({**shrunk, "attemptStartTime": to_text(START)}, known, START)
    whole = {"attempt": 3, "phase": "Running", "continues": 1, "failures": [failure]}
    known |= observe({**whole, "attemptStartTime": to_text(START + 14)}, known, START + 14)
    answers = _shown(known, "Running")
    assert [found["outcome"] for found in answers] == ["Failed", "Joined", "Running"]
    assert [found["trainingWith"] for found in answers] == [None, "3 of 4 workers", None]
    assert (answers[1]["startedAt"], answers[1]["endedAt"]) == (to_text(START), to_text(START + 14))


def test_a_failure_that_was_merged_with_another_is_none_any_more() -> None:
    running = {"attempt": 2, "phase": "Running"}
    failure = {"attempt": 1, "reason": "PeerLost", "provisional": True, "failedAt": to_text(START)}
    known = observe({**running, "failures": [failure]}, {}, START)
    better = {**failure, "reason": "NodeLost", "provisional": None}
    known |= observe({**running, "failures": [better]}, known, START)
    assert known[1].failure == better
    known |= observe({**running, "failures": []}, known, START)
    assert known[1].failure is None
    # A full list contains nothing about older attempts.
    many = [{**failure, "attempt": attempt} for attempt in range(20, 10, -1)]
    known = {5: Attempt(failure=failure), 15: Attempt(failure=failure)}
    changed = observe({"attempt": 21, "failures": many}, known, START)
    assert 5 not in changed and changed[15].failure == many[5]


def test_each_attempt_of_an_entry_with_a_count_has_its_own_failure() -> None:
    one = {"reason": "Error", "exception": "KeyError: 'x'", "counted": True}
    first = {**one, "attempt": 1, "failedAt": to_text(START)}
    known = observe({"attempt": 2, "failures": [first]}, {}, START)
    entry = {**one, "attempt": 4, "count": 4, "firstAttempt": 1, "failedAt": to_text(START + 9)}
    known |= observe({"attempt": 5, "failures": [entry]}, known, START)
    assert known[1].failure == first
    # The statuses of attempts 2 and 3 were missed.
    assert [known[attempt].failure for attempt in (2, 3)] == [{**one, "attempt": attempt} for attempt in (2, 3)]
    assert known[4].failure == {**one, "attempt": 4, "failedAt": to_text(START + 9)}
    assert observe({"attempt": 5, "failures": [entry]}, known, START) == {}
    # Between these failures, other ranks joined.
    entry = {**entry, "attempt": 9, "count": 5}
    known |= observe({"attempt": 10, "failures": [entry]}, known, START)
    assert [attempt for attempt, found in sorted(known.items()) if found.failure is not None] == [1, 2, 3, 4, 9]


def test_a_group_that_is_stopped_and_goes_on_in_its_attempt_wasnt_ended() -> None:
    known = observe({"attempt": 1, "phase": "Running", "resizing": True}, {}, START)
    assert known[1].ended_as == "Resized"
    assert observe({"attempt": 1, "phase": "Running"}, known, START)[1].ended_as is None


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"attempt": "x", "failures": "y", "conditions": 3},
        {"attempt": 10**9, "phase": {"a": 1}},
        {"attempt": -1, "failures": [3, {"attempt": []}, None]},
        {"attempt": 1, "phase": "Succeeded", "completionTime": 7, "attemptStartTime": "never"},
        {"attempt": 1, "phase": "Running", "conditions": [{"type": "Running", "status": "True"}]},
    ],
)
def test_statuses_that_anybody_edited_are_read_as_far_as_they_go(status: dict[str, Any]) -> None:
    for _, found in sorted(observe(status, {}, START).items()):
        assert shown(1, found, None, phase="Running", deleted_at=None)["startedAt"] is None


@pytest.mark.parametrize(
    ("phase", "deleted", "outcome"),
    [("Running", None, "Running"), ("Starting", None, "Starting"), ("Running", "2026-11-26T03:00:00.000Z", "Deleted")],
)
def test_an_attempt_without_an_end_is_as_its_job_is(phase: str, deleted: str | None, outcome: str) -> None:
    found = Attempt(running_at=to_text(START))
    answer = shown(1, found, None, phase=phase, deleted_at=deleted)
    assert (answer["outcome"], answer["endedAt"]) == (outcome, deleted)
    following = Attempt(started_at=to_text(START + 9))
    answer = shown(1, found, following, phase=phase, deleted_at=deleted)
    assert (answer["outcome"], answer["endedAt"]) == ("Ended", to_text(START + 9))


def test_a_pod_keeps_the_node_that_it_was_seen_on() -> None:
    known = merge_workers({}, [PodPlace(0, "mine-0", "node-a"), PodPlace(1, "mine-1")])
    known = merge_workers(known, [PodPlace(0, "mine-0"), PodPlace(1, "mine-1", "node-b"), PodPlace(2, "")])
    assert known == {0: PodPlace(0, "mine-0", "node-a"), 1: PodPlace(1, "mine-1", "node-b")}
    assert merge_workers(known, [PodPlace(0, "mine-0-again")])[0] == PodPlace(0, "mine-0-again")
