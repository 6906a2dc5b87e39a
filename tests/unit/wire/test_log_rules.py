"""A sentence refuses a job's pattern if it matches nothing useful, or could take forever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.wire.log_rules import GROUPS, MAX_PATTERN_CHARACTERS, check_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"step (?P<step>\d+).*loss (?P<loss>[\d.]+)",
        r"(?i)^STEP\s+(?P<step>\d+)(?:/(?P<totalSteps>\d+))?",
        r"(?P<step>(?:[0-9]{3},)*[0-9]+)",
        r"(?:epoch|step) (?P<step>[0-9]+)",
        *(f"(?P<{group}>[0-9]+)" for group in GROUPS),
    ],
)
def test_an_ordinary_pattern_is_taken(pattern: str) -> None:
    assert check_pattern(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(", "is not a regular expression of Python: missing ), unterminated subpattern at position 0; correct it"),
        ("a{99999999999}", "is not a regular expression of Python"),
        ("step", "has no named group"),
        (r"(?P<steps>\d+)", "has a group 'steps', which is no field of progress; use step, "),
        (r"(?P<step>(\d+)+)$", "repeats what is itself repeated"),
        (r"(?P<step>(?:\d*,)*)$", "repeats what is itself repeated"),
        (r"(?=(a?)+b)(?P<step>\d)", "repeats what is itself repeated"),
        (r"(?P<step>\d)(?:ab|a)*$", "repeats alternatives"),
        (r"(?P<step>\d++)", "Python 3.9 lacks"),
        (r"(?P<step>(?>a+))", "Python 3.9 lacks"),
        ("(?P<step>.)" + "x" * MAX_PATTERN_CHARACTERS, "is too long; use at most 500 characters"),
    ],
)
def test_what_is_wrong_is_said(pattern: str, sentence: str) -> None:
    assert sentence in (check_pattern(pattern) or "")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(st.text(alphabet="()[]{}?*+.|\\dP<step>=!:^$,0123456789a", max_size=60))
def test_any_text_is_answered(pattern: str) -> None:
    check_pattern(pattern)
