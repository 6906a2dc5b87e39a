"""Ranks ask each other every few steps, and all of them ask in the same steps (`recovery/agreement`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from trainloop.recovery import agreement
from trainloop.recovery.agreement import Questions


class Asked:
    """Stands in for a group of several ranks, which are asked one after the other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.numbers = list[tuple[int, ...]]()

    def begin_to_ask(self, *numbers: int) -> Callable[[], list[int]]:
        self.numbers.append(numbers)

        def waited() -> list[int]:
            assert len(self.numbers) == self.size, "a rank has asked alone"
            return [max(each) for each in zip(*self.numbers, strict=True)]

        return waited


def asking_steps(monkeypatch: pytest.MonkeyPatch, seconds: list[list[float]]) -> list[int]:
    """Returns the steps in which ranks ask, given each rank's seconds for each step."""
    now = [1000.0]
    monkeypatch.setattr(agreement.time, "monotonic", lambda: now[0])
    size, asked = len(seconds[0]), list[int]()
    group: Any = Asked(size)
    ranks = [Questions(group) for _ in range(size)]
    clocks = [1000.0 * (rank + 1) for rank in range(size)]
    for rank in ranks:
        rank.restart(0)
    for step, of_ranks in enumerate(seconds, start=1):
        begun = list[Callable[[], list[int]] | None]()
        for number, rank in enumerate(ranks):
            now[0] = clocks[number]
            begun.append(rank.begin(step, 0, number))
            clocks[number] += of_ranks[number]
        waiting = [each for each in begun if each is not None]
        assert len(waiting) in (0, size)
        if waiting:
            asked.append(step)
            assert {tuple(wait()) for wait in waiting} == {(0, size - 1)}
        group.numbers.clear()
    return asked


def test_after_ten_steps_short_ones_are_every_tenth_long_ones_each_and_others_a_quarter_of_a_second_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = list(range(1, 11))
    assert asking_steps(monkeypatch, [[0.001, 0.001]] * 35) == [*first, 20, 30]
    assert asking_steps(monkeypatch, [[0.06, 0.04]] * 20) == [*first, 14, 18]
    assert asking_steps(monkeypatch, [[0.3, 0.3]] * 5) == [1, 2, 3, 4, 5]


def test_the_longest_step_since_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [[0.001]] * 14 + [[1.0]] + [[0.001]] * 10
    assert asking_steps(monkeypatch, seconds) == [*range(1, 11), 20, 21]


def test_ranks_whose_clocks_differ_ask_in_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    for size in (1, 2, 5):
        seconds = [[chance.choice([0.001, 0.03, 0.1, 2.0]) for _ in range(size)] for _ in range(300)]
        assert len(asking_steps(monkeypatch, seconds)) > 30
