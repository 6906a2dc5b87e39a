"""`bench.peers.healthy` compares a program's runs with those of plain DDP in the same round."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.clusters.steps import Steps
from bench.peers.healthy import Program, Turn, error_of_median, rows


def program(tmp_path: Path, times: list[float]) -> Program:
    """Returns a program whose runs took these times."""
    return Program("", Steps(tmp_path), 1, [Turn(median, 2 * median, 3 * median, 4 * median) for median in times])


def test_a_machine_that_slows_down_steadily_leaves_no_difference(tmp_path: Path) -> None:
    """In each round, A B B A, every run takes 1 % longer than the one before, and B takes another 0.5 %."""
    plain, other = list[float](), list[float]()
    for number in range(5):
        for place, times, factor in ((0, plain, 1.0), (1, other, 1.005), (2, other, 1.005), (3, plain, 1.0)):
            times.append(factor * (0.04 + 0.0004 * (4 * number + place)))
    found = rows(program(tmp_path, other), program(tmp_path, plain), "other")
    assert [row[3] for row in found] == ["+0.50%"] * 4
    assert [row[6] for row in found] == [5] * 4
    assert found[0][:3] == ["other: a step, median", "43.80", "44.02"]


def test_the_standard_error_of_a_median_is_how_far_medians_are_apart() -> None:
    chance = random.Random(1)
    samples = [[chance.gauss(0.0, 1.0) for _ in range(50)] for _ in range(400)]
    errors = sorted(error_of_median(each) for each in samples)
    medians = [sorted(each)[25] for each in samples]
    spread = (sum(each**2 for each in medians) / len(medians)) ** 0.5
    assert errors[200] == pytest.approx(spread, rel=0.1)
