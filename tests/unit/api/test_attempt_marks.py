"""`api.attempt_marks`: a container's log is cut into its attempts."""

from __future__ import annotations

import pytest

from trainmaster_operator.api.attempt_marks import lines_of_attempt, marked_attempt

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
