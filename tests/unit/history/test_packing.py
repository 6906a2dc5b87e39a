"""`history.packing`: columns become bytes and the same columns again, as exactly as their form says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.history.packing import (
    compress,
    decompress,
    floats_from_bytes,
    floats_to_bytes,
    halves_from_bytes,
    halves_to_bytes,
    wholes_from_bytes,
    wholes_to_bytes,
)

FIGURES = st.floats(-1e30, 1e30, allow_subnormal=False) | st.just(math.nan)


@given(st.lists(st.integers(-1, 2**53)))
def test_whole_numbers_are_kept_exactly(values: list[int]) -> None:
    assert wholes_from_bytes(wholes_to_bytes(values)) == values


@given(st.lists(FIGURES))
def test_figures_of_curves_have_seven_digits(values: list[float]) -> None:
    assert floats_from_bytes(floats_to_bytes(values)) == pytest.approx(values, rel=1e-7, abs=1e-37, nan_ok=True)


@given(st.lists(FIGURES))
def test_figures_of_heat_have_three_digits_over_nine_orders_of_magnitude(values: list[float]) -> None:
    largest = max((abs(value) for value in values if value == value), default=0.0)
    found = halves_from_bytes(halves_to_bytes(values))
    assert found == pytest.approx(values, rel=5e-4, abs=largest * 1e-9, nan_ok=True)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e100, -1e100, 0.0, 0.5, 65_504.0, 65_536.0])
def test_heat_of_any_size_is_kept(value: float) -> None:
    assert halves_from_bytes(halves_to_bytes([value, value / 2])) == pytest.approx([value, value / 2], rel=5e-4)


def test_a_curve_beyond_what_can_be_drawn_is_infinite() -> None:
    assert floats_from_bytes(floats_to_bytes([1e100, -1e100])) == [math.inf, -math.inf]


def test_bytes_that_werent_compressed_are_refused() -> None:
    assert decompress(compress(b"it")) == b"it"
    with pytest.raises(ValueError, match="a block can't be read"):
        decompress(b"it")
