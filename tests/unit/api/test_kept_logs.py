"""`KeptLog` appends the output of a worker's pod, or of its next pod, to the lines already kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.kept_logs import KeptLog, lines_of_attempt, marked_attempt

# Pods print one after the other, in lines a few milliseconds apart. A pod may begin with its attempt's mark.
PODS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=4)


def printed(pods: list[list[int]]) -> list[KeptLog]:
    """Returns the log of each pod. All lines differ, but several may have the same time."""
    logs, time = [], 1_000
    for number, steps in enumerate(pods, 1):
        time += 10
        lines, times = ([f"--- attempt {number} ---"], [time]) if number > 1 else ([], [])
        for place, step in enumerate(steps):
            time += step
            lines.append(f"pod {number} line {place}")
            times.append(time)
        logs.append(KeptLog(tuple(lines), tuple(times)))
    return logs


def tail(log: KeptLog, first: int) -> KeptLog:
    return KeptLog(log.lines[first:], log.times[first:] if log.times else None, cut=first > 0)


@given(pods=PODS, data=st.data())
def test_pods_that_are_read_again_and_again_are_kept_once(pods: list[list[int]], data: st.DataObject) -> None:
    logs, kept = printed(pods), KeptLog()
    for log in logs:
        until = data.draw(st.integers(0, len(log.lines)))
        # Each log is read while its pod still prints, then to its end, then once more.
        for part in (KeptLog(log.lines[:until], log.times and log.times[:until]), log, log):
            kept = kept.continued(part)
    assert kept.lines == tuple(line for log in logs for line in log.lines) and not kept.cut
    assert kept.times == tuple(time for log in logs for time in log.times or ())


@given(pods=PODS, data=st.data())
def test_of_a_log_whose_beginning_is_gone_no_line_is_kept_twice(pods: list[list[int]], data: st.DataObject) -> None:
    logs, kept = printed(pods), KeptLog()
    for log in logs:
        for _ in range(2):
            kept = kept.continued(tail(log, data.draw(st.integers(0, len(log.lines) - 1))))
    assert len(set(kept.lines)) == len(kept.lines)
    assert kept.lines[-1] == logs[-1].lines[-1]
    assert list(kept.times or ()) == sorted(kept.times or ())


def test_what_was_kept_before_a_pods_log_is_found_by_its_attempt_else_by_its_time_else_by_its_line() -> None:
    kept = KeptLog(("a", "--- attempt 2 ---", "b", "c"), (1, 2, 3, 4))
    # A node's clock may be slow.
    assert kept.before("--- attempt 2 ---", 0).lines == ("a",)
    assert kept.before("--- attempt 3 ---", 0) == kept
    assert kept.before("c", 4).lines == ("a", "--- attempt 2 ---", "b")
    assert kept.before("d", 9) == kept
    assert KeptLog(("a", "b")).before("b", 9).lines == ("a",)
    assert kept.before("c", None).lines == ("a", "--- attempt 2 ---", "b")


LOG = ("one", "--- attempt 2 ---", "two", "[rank 0]: --- attempt 3 ---", "--- attempt 4 ---", "four")


@pytest.mark.parametrize(
    ("line", "attempt"),
    [("--- attempt 12 ---", 12), ("[rank 0]: --- attempt 2 ---", None), ("--- attempt 2 --- ", None), ("", None)],
)
def test_only_the_agents_own_line_marks_an_attempt(line: str, attempt: int | None) -> None:
    assert marked_attempt(line) == attempt


@pytest.mark.parametrize(
    ("attempt", "lines"),
    [(1, ("one",)), (2, ("two", "[rank 0]: --- attempt 3 ---")), (3, ()), (4, ("four",)), (5, ())],
)
def test_an_attempts_lines_go_from_its_mark_to_the_next_one(attempt: int, lines: tuple[str, ...]) -> None:
    assert lines_of_attempt(LOG, attempt, newest=5, whole=True) == lines


def test_a_mark_that_isnt_above_the_one_before_marks_nothing() -> None:
    forged = ("--- attempt 2 ---", "a", "--- attempt 1 ---", "b", "--- attempt 2 ---", "c")
    assert lines_of_attempt(forged, 2, newest=2, whole=True) == forged[1:]
    assert lines_of_attempt(forged, 1, newest=2, whole=True) == ()


def test_the_next_attempt_is_told_apart_before_the_status_knows_it() -> None:
    assert lines_of_attempt(("x", "--- attempt 2 ---", "y"), 1, newest=1, whole=False) == ("x",)


@pytest.mark.parametrize(
    ("log", "attempt", "newest", "lines"),
    [
        (("x",), 3, 3, ("x",)),
        (("x",), 3, 4, ()),
        (("x", "--- attempt 4 ---", "y"), 3, 4, ("x",)),
        (("x", "--- attempt 4 ---", "y"), 2, 4, ()),
        (("x", "--- attempt 4 ---", "y"), 4, 4, ("y",)),
        (("x", "--- attempt 2 ---", "y"), 3, 3, ()),
    ],
)
def test_without_its_beginning_a_log_has_only_what_is_surely_the_attempts(
    log: tuple[str, ...], attempt: int, newest: int, lines: tuple[str, ...]
) -> None:
    assert lines_of_attempt(log, attempt, newest=newest, whole=False) == lines


def test_a_whole_log_begins_with_the_attempt_before_its_first_mark_also_when_others_left_nothing() -> None:
    assert lines_of_attempt(("x", "--- attempt 4 ---", "y"), 2, newest=4, whole=True) == ("x",)
    assert lines_of_attempt(("x",), 1, newest=2, whole=True) == ("x",)
