"""Ranks, attempts and times are picked from one container's log (`cli/logs/selection.py`, `lines.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.fakes import job
from trainmaster.cli.logs.selection import Filter, Selection, picked
from trainmaster.client import TrainingJob
from trainmaster.client.merging import WorkerLine

T0 = 1_763_697_600.0
LOG = (
    "[agent]: attempt 1 starts cold",
    "[rank 0]: one",
    "[rank 1]: --- attempt 9 ---",
    "[worker 0]: torchrun says",
    "--- attempt 2 ---",
    "[rank 0]: two",
    "[rank 10]: two",
)


def kept(selection: Selection, log: tuple[str, ...] = LOG, at: float = T0, **status: Any) -> list[str]:
    lines = (WorkerLine(at + number, 0, text) for number, text in enumerate(log))
    return [line.text for line in picked(lines, Filter(selection, TrainingJob.of(job(**status))))]


def test_a_rank_has_the_lines_that_begin_with_it() -> None:
    assert kept(Selection(ranks=frozenset([0]))) == ["[rank 0]: one", "[rank 0]: two"]
    assert kept(Selection(ranks=frozenset([1, 10]))) == ["[rank 1]: --- attempt 9 ---", "[rank 10]: two"]


def test_an_attempt_goes_from_its_separator_to_the_next_one_and_no_rank_can_forge_one() -> None:
    assert kept(Selection(attempt=1)) == list(LOG[:4])
    assert kept(Selection(attempt=2)) == list(LOG[4:])
    assert kept(Selection(attempt=9)) == []


def test_a_log_whose_beginning_is_gone_begins_with_the_attempt_that_there_was_at_the_time() -> None:
    failures = [
        {"attempt": attempt, "reason": "Error", "failedAt": f"2026-11-21T0{3 + attempt}:00:00Z"} for attempt in (2, 1)
    ]
    log, late = ("[rank 0]: after",), 1_795_242_600.0  # 2026-11-21T06:30:00Z
    assert kept(Selection(attempt=3), log, late, failures=failures) == list(log)
    assert kept(Selection(attempt=1), log, late, failures=failures) == []
    assert kept(Selection(attempt=2), log, late - 7200, failures=failures) == list(log)


def test_lines_that_are_older_are_left_out_and_lines_without_a_time_are_not() -> None:
    assert kept(Selection(since=T0 + 5)) == list(LOG[5:])
    assert kept(Selection(since=T0), at=-1e9) == []
    assert kept(Selection(since=T0), log=("x",), at=0.0) == ["x"]


@pytest.mark.parametrize(
    ("text", "rank", "label", "separates"),
    [
        ("[rank 12]: text", 12, "[rank 12]: ", None),
        ("[worker 3]: text", None, "[worker 3]: ", None),
        ("[agent]: text", None, "", None),
        ("--- attempt 3 ---", None, "", 3),
        ("--- attempt 3 --- ", None, "", None),
        ("[rank x]: text", None, "", None),
        ("", None, "", None),
    ],
)
def test_a_line_says_whose_it_is(text: str, rank: int | None, label: str, separates: int | None) -> None:
    line = WorkerLine(0, 0, text)
    assert (line.rank, line.label, line.separates) == (rank, label, separates)
