"""A module that draws random numbers at import can be forked; a module that seeds them can't (`stage`)."""

from __future__ import annotations

import random

import pytest

from trainmaster_operator.agent.warm.stage.forkable import _follows


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 5_000])
@pytest.mark.parametrize("before", [0, 1, 300])
def test_drawing_is_no_seed(before: int, drawn: int) -> None:
    generator = random.Random()
    for _ in range(before):
        generator.random()
    state = generator.getstate()
    for _ in range(drawn):
        generator.getrandbits(32)
    assert _follows(state, generator.getstate())


def test_a_normal_deviate_that_is_kept_is_no_seed() -> None:
    generator = random.Random()
    state = generator.getstate()
    generator.gauss(0, 1)
    assert _follows(state, generator.getstate())


@pytest.mark.parametrize("seed", [0, 1, "text"])
def test_a_seed_is_one(seed: object) -> None:
    generator = random.Random()
    state = generator.getstate()
    generator.seed(seed)  # type: ignore[arg-type]
    assert not _follows(state, generator.getstate())
    generator.random()
    assert not _follows(state, generator.getstate())


def test_states_of_other_generators_are_compared_as_they_are() -> None:
    assert _follows(b"words", b"words")
    assert not _follows(b"words", b"others")
    assert not _follows(1, 2)
