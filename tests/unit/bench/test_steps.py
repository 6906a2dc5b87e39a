"""`bench.clusters.steps` says how long the work had taken that a fault causes to be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.clusters.steps import Steps


def written(path: Path, lines: list[tuple[float, int, int, int]]) -> Steps:
    """Returns what ranks have written down: time, attempt, rank and step."""
    path.write_text("".join(f"{at:.4f} {attempt} {rank} 1{rank} {step}\n" for at, attempt, rank, step in lines))
    steps = Steps(path)
    steps.poll()
    return steps


def test_the_steps_that_are_repeated_had_taken_their_time_in_the_attempt_before(tmp_path: Path) -> None:
    lines = [(100.0 + 0.5 * step, 1, rank, step) for step in range(1, 21) for rank in range(2)]
    steps = written(tmp_path / "steps", [*lines, *((200.0 + step, 2, 0, step) for step in range(17, 30))])
    assert steps.seconds_of_last(1, 4) == pytest.approx(2.0)
    assert steps.seconds_of_last(1, 0) == 0.0
    assert steps.seconds_of_last(1, 100) == pytest.approx(9.5)


def test_no_steps_have_taken_no_time(tmp_path: Path) -> None:
    assert written(tmp_path / "steps", []).seconds_of_last(1, 3) == 0.0
