"""Random generators continue exactly where they were captured (`recovery/generators`)."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from trainloop.recovery import generators

CPU = torch.device("cpu")


def drawn() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    ]


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("way", [generators._from_memory, generators._from_python])
def test_generators_go_on_where_they_were(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[], bytes], before: int
) -> None:
    """Python's state is read in both ways; after every other draw of a gauss, one is left over."""
    monkeypatch.setattr(generators, "_python", way)
    for _ in range(before):
        random.gauss(0, 1)
        np.random.randn()
        generators.capture(CPU)
    state = generators.capture(CPU)
    expected = [drawn() for _ in range(700)]
    generators.restore(state, CPU)
    assert [drawn() for _ in range(700)] == expected


def test_a_state_has_one_length_whether_a_second_number_is_in_store_or_not() -> None:
    lengths = set()
    for _ in range(4):
        drawn()
        lengths.add(len(generators.packed(CPU)))
    assert len(lengths) == 1


def test_another_generator_of_numpys_is_captured_as_soon_as_it_is_there() -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(1))
        state = generators.capture(CPU)
        expected = drawn()
        np.random.set_bit_generator(np.random.MT19937(2))
        generators.restore(state, CPU)
        assert drawn() == expected
    finally:
        np.random.set_bit_generator(before)


def test_pythons_state_is_read_from_memory_here() -> None:
    assert generators._python is generators._from_memory


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_after_a_seed_they_go_on_where_they_were_and_numpy_is_asked_only_when_it_has_drawn(
    monkeypatch: pytest.MonkeyPatch, draws: int
) -> None:
    np.random.randn()
    generators.capture(CPU)
    asked = list[int]()
    get_state = np.random.get_state
    monkeypatch.setattr(np.random, "get_state", lambda **options: asked.append(1) or get_state(**options))
    for number in (5, 6):
        generators.seed(number, CPU)
        for _ in range(draws):
            random.gauss(0, 1)
            np.random.randn()
        state = generators.capture(CPU)
        expected = [drawn() for _ in range(10)]
        generators.restore(state, CPU)
        assert [drawn() for _ in range(10)] == expected
    assert bool(asked) == bool(draws)
