"""`bench.clusters.steps` measures when ranks continue after a fault, what they repeat, and the gap between."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.clusters.steps import Steps


def written(path: Path, lines: list[tuple[float, int, int, int]], parts: int = 1) -> Steps:
    """Returns steps as ranks write them: time, attempt, rank and step, each with so many of 12 micro-batches."""
    path.write_text(
        "".join(f"{at:.4f} {attempt} {rank} 1{rank} {step} {parts} 12\n" for at, attempt, rank, step in lines)
    )
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


def lost_and_back() -> list[tuple[float, int, int, int]]:
    """Returns the steps of three ranks, one in each second. Rank 2 is lost at 10.5 s. The other two continue in attempt
    2 at 12.0 and 12.2 s. At 18.0 s rank 2 is back in attempt 3, and after this pause all three make step 15.
    """
    lines = [(float(step), 1, rank, step) for step in range(1, 11) for rank in range(3)]
    lines += [(step + 1 + 0.2 * rank, 2, rank, step) for step in range(11, 15) for rank in range(2)]
    return lines + [(step + 3.0, 3, rank, step) for step in range(15, 20) for rank in range(3)]


async def test_survivors_go_on_when_the_slowest_of_them_has_done_a_new_step(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back())
    assert await steps.first_new(1, 10.5, {0, 1}) == (pytest.approx(12.2), 0)
    assert await steps.first_new(1, 10.5, range(3)) == (pytest.approx(18.0), 0)


async def test_a_step_that_the_lost_rank_took_part_in_is_no_new_one(tmp_path: Path) -> None:
    late = [*lost_and_back(), (10.6, 1, 0, 11), (10.6, 1, 1, 11)]
    assert await written(tmp_path / "steps", late).first_new(1, 10.5, {0, 1}) == (pytest.approx(13.2), 1)


async def test_ranks_that_never_go_on_are_waited_for_no_longer_than_that(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", [(1.0, 1, rank, 1) for rank in range(2)])
    with pytest.raises(TimeoutError, match="no new step"):
        await steps.first_new(1, 0.0, {0}, seconds=0.05)


async def test_the_longest_gap_is_between_two_steps_of_one_rank_until_the_lost_one_is_back(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back())
    assert await steps.joined(1, 2) == (18.0, 3)
    assert steps.longest_gap({0, 1}, 12.2, 18.0) == pytest.approx(3.0)
    assert steps.longest_gap({0, 1}, 12.2, 16.0) == pytest.approx(1.0)


def test_the_gap_before_an_attempt_is_that_of_the_rank_that_waited_longest(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back())
    assert steps.gap_before(3, {0, 1}) == pytest.approx(3.0)
    assert steps.gap_before(3, {1}) == pytest.approx(2.8)
    assert steps.gap_before(2, {0}) == pytest.approx(2.0)


async def test_steps_after_an_attempt_are_waited_for_on_each_rank(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back())
    await steps.made(2, {0, 1}, 9, seconds=0.05)
    with pytest.raises(TimeoutError, match="no 10 steps"):
        await steps.made(2, {0, 1}, 10, seconds=0.05)
    with pytest.raises(TimeoutError, match="no 9 steps"):
        await steps.made(2, {0, 2}, 9, seconds=0.05)


def test_steps_made_until_a_time_are_those_of_the_furthest_rank(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back())
    assert [steps.made_until(at) for at in (0.5, 10.5, 13.1, 17.0)] == [0, 10, 12, 14]


def test_steps_with_a_smaller_batch_are_those_after_the_fault(tmp_path: Path) -> None:
    steps = written(tmp_path / "steps", lost_and_back(), parts=4)
    assert steps.shares(1, 17.0) == [pytest.approx(8 / 12)] * 4
    assert steps.shares(1, 18.0) == [*[pytest.approx(8 / 12)] * 4, 1.0]


def test_a_step_that_a_rank_was_lost_after_lacks_nothing(tmp_path: Path) -> None:
    """Rank 1 had its samples in step 15, and was lost before it recorded them."""
    lines = [*((float(step), 2, rank, step) for step in range(11, 15) for rank in range(2)), (15.0, 2, 0, 15)]
    assert written(tmp_path / "steps", lines, parts=6).shares(1, 20.0) == [1.0] * 4
