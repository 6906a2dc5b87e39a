"""`history.figures` reduces points but keeps the time span, order, attempts and peaks, and reads blocks back."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.history.figures import (
    _COMMON,
    CURVES,
    HEAT,
    MEAN,
    NAN,
    PEAK,
    RULES,
    STEP,
    Points,
    decompress,
    joined,
    times_of_block,
)

SECONDS = st.sampled_from([0.0, 10.0, 60.0, 7200.0])
FIGURE = st.floats(0, 1e6, width=32) | st.just(NAN)
# Each point has its distance, whether an attempt begins with it, and two figures.
POINTS = st.lists(st.tuples(st.floats(0.001, 100.0), st.booleans(), FIGURE, FIGURE), max_size=60)
Drawn = Sequence[tuple[float, bool, float, float]]


def _times(points: Drawn) -> tuple[list[float], list[int]]:
    at, attempt = [1_000.0], [1]
    for distance, begins, *_ in points[1:]:
        at.append(at[-1] + distance)
        attempt.append(attempt[-1] + begins)
    return at[: len(points)], attempt[: len(points)]


def _curves(points: Drawn) -> Points:
    at, attempt = _times(points)
    values = {
        name: array("d", [loss if name == "loss" else slow for *_, loss, slow in points]) for name in RULES[CURVES]
    }
    return Points(CURVES, at=at, attempt=attempt, values=values | {STEP: array("d", range(len(points)))})


def _heat(points: Drawn) -> Points:
    at, attempt = _times(points)
    values = array("d", [value for *_, first, second in points for value in (first, second)])
    return Points(HEAT, [0, 1], [0, 0], at, attempt, {PEAK: values, "loss": values[:]})


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]


@settings(max_examples=50)
@given(POINTS, SECONDS)
def test_thin_curves_have_the_whole_time_in_order_and_every_peak(points: Drawn, seconds: float) -> None:
    full, thin = _curves(points), _curves(points).thinned(seconds)
    assert len(thin) <= len(full)
    assert thin.at[-1:] == full.at[-1:] and thin.at == sorted(thin.at) and set(thin.at) <= set(full.at)
    assert not full.at or thin.at[0] - full.at[0] <= seconds
    assert list(dict.fromkeys(thin.attempt)) == list(dict.fromkeys(full.attempt))
    # There is at most one point for each span of time, and one more for each attempt.
    if seconds and full.at:
        assert len(thin) <= (full.at[-1] // seconds - full.at[0] // seconds + 1) + len(set(full.attempt)) - 1
    slow = "slowestStepSeconds"
    assert max(_known(thin.values[slow]), default=0) == max(_known(full.values[slow]), default=0)
    known = _known(full.values["loss"])
    assert all(min(known) <= value <= max(known) + 1e-6 for value in _known(thin.values["loss"]))
    # The last step of each attempt shows how many steps are repeated.
    for attempt in set(full.attempt):
        assert _last_step(thin, attempt) == _last_step(full, attempt)


def _last_step(points: Drawn, attempt: int) -> float:
    steps = zip(points.values[STEP], points.attempt, strict=True)
    return max((step for step, of in steps if of == attempt), default=-1)


@settings(max_examples=50)
@given(POINTS, SECONDS)
def test_a_straggler_stays_visible_in_thin_heat(points: Drawn, seconds: float) -> None:
    full, thin = _heat(points), _heat(points).thinned(seconds)
    for rank in (0, 1):
        slowest = [max(_known([row[rank] for row in found.rows(PEAK)]), default=None) for found in (full, thin)]
        assert slowest[0] == slowest[1]
    for place, row in enumerate(thin.rows(MEAN)):
        for rank in (0, 1):
            assert math.isnan(row[rank]) or row[rank] <= thin.rows(PEAK)[place][rank] + 1e-6


def test_a_point_of_several_says_the_mean_the_peak_or_the_last() -> None:
    values = {name: array("d", [4.0, NAN, 2.0, 7.0]) for name in RULES[CURVES]} | {STEP: array("d", [1, 2, 3, 4])}
    full = Points(CURVES, at=[10.0, 12.0, 14.0, 21.0], attempt=[1, 1, 1, 1], values=values)
    thin = full.thinned(10.0)
    assert thin.at == [14.0, 21.0] and list(thin.values[STEP]) == [3, 4]
    assert list(thin.values["loss"]) == [3.0, 7.0]
    assert all(list(thin.values[name]) == [4.0, 7.0] for name in ("slowestStepSeconds", "gradNorm"))
    assert all(list(thin.values[name]) == [2.0, 7.0] for name in ("goodput", "timeSpent.productive"))


def test_a_rank_that_was_slow_once_and_one_that_is_always_are_told_apart() -> None:
    times = [float(10 + n) for n in range(10)]
    rows = [[9.0 if n == 3 else 1.0, 2.0, NAN] for n in range(10)]
    full = Points(
        HEAT, [0, 1, 2], [0, 0, 1], times, [1] * 10, {PEAK: array("d", [each for row in rows for each in row])}
    )
    thin = full.thinned(10.0)
    assert list(thin.rows(PEAK)[0][:2]) == [9.0, 2.0] and math.isnan(thin.rows(PEAK)[0][2])
    assert list(thin.rows(MEAN)[0][:2]) == [pytest.approx(fmean(row[0] for row in rows)), 2.0]


@settings(max_examples=25)
@given(POINTS, st.integers(0, 2**53))
def test_a_block_of_curves_is_read_as_it_was_written(points: Drawn, step: int) -> None:
    full = _curves(points)
    full.values[STEP] = array("d", [step] * len(full))
    block = full.to_block()
    found = Points.of_block(CURVES, block)
    assert found.at == pytest.approx(full.at, abs=0.001) and found.attempt == full.attempt
    assert (found.at, found.attempt) == times_of_block(block)
    # Steps are exact, and a curve's figures have seven digits.
    assert found.values.pop(STEP) == full.values[STEP]
    for name, values in found.values.items():
        assert values == pytest.approx(full.values[name], rel=1e-7, abs=1e-37, nan_ok=True)


def test_a_block_of_another_release_has_what_both_have() -> None:
    full = _curves([(1.0, False, 2.5, 3.5)])
    full.values["curvature"] = full.values.pop("loss")
    found = joined(CURVES, [Points.of_block(CURVES, full.to_block())])
    assert list(found.values["slowestStepSeconds"]) == [3.5] and "loss" not in found.values
    assert math.isnan(found.rows("loss")[0][0])


def test_a_block_that_is_damaged_is_refused() -> None:
    raw = zlib.decompressobj(zdict=_COMMON).decompress(_curves([(1.0, False, 2.5, 3.5)]).to_block())
    for damaged in (
        b"it",
        zlib.compress(b"it"),
        zlib.compress(raw[:-1]),
        zlib.compress(raw + b"x"),
        zlib.compress(raw.replace(b"[1]", b"[]")),
    ):
        with pytest.raises(ValueError, match=r"a block|Expecting value"):
            Points.of_block(CURVES, damaged)
    for damaged in (b"it", _block(b"it")):
        with pytest.raises(ValueError, match="a block can't be read"):
            times_of_block(damaged)


def _block(raw: bytes) -> bytes:
    packing = zlib.compressobj(zdict=_COMMON)
    return packing.compress(raw) + packing.flush()


def test_bytes_that_werent_compressed_are_refused() -> None:
    assert decompress(zlib.compress(b"it")) == b"it"
    with pytest.raises(ValueError, match="can't be read"):
        decompress(b"it")


@settings(max_examples=25)
@given(POINTS)
def test_a_block_of_heat_is_read_as_it_was_written(points: Drawn) -> None:
    full = _heat(points)
    found = Points.of_block(HEAT, full.to_block())
    assert (found.ranks, found.workers, found.attempt) == (full.ranks, full.workers, full.attempt)
    assert found.values[PEAK] == pytest.approx(full.values[PEAK], rel=5e-4, nan_ok=True)
    alone = Points.of_block(HEAT, full.to_block(), MEAN)
    assert list(alone.values) == [PEAK]
    # If there is no mean beside the peak, the two are equal.
    assert [list(row) for row in alone.rows(MEAN)] == [pytest.approx(row, nan_ok=True) for row in found.rows(PEAK)]


@given(st.lists(st.floats(-1e30, 1e30, allow_subnormal=False) | st.just(NAN)))
def test_figures_of_heat_have_three_digits(values: list[float]) -> None:
    times = [float(time) for time in range(len(values))]
    full = Points(HEAT, at=times, attempt=[1] * len(values), values={"loss": array("d", values)})
    found = Points.of_block(HEAT, full.to_block()).values["loss"]
    assert list(found) == pytest.approx(values, rel=5e-4, abs=1e-37, nan_ok=True)


@pytest.mark.parametrize("kind", [CURVES, HEAT])
def test_a_figure_beyond_what_can_be_drawn_is_infinite(kind: str) -> None:
    full = Points(kind, at=[1.0, 2.0, 3.0], attempt=[1] * 3, values={"loss": array("d", [1e100, -1e100, 5e-324])})
    assert list(Points.of_block(kind, full.to_block()).values["loss"]) == [math.inf, -math.inf, 0.0]


def test_heat_of_groups_of_different_sizes_is_one_map() -> None:
    parts = [
        Points(HEAT, [0, 1], [0, 1], [1.0], [1], {PEAK: array("d", [1.0, 2.0])}),
        Points(HEAT, [1, 2], [5, 6], [2.0], [2], {PEAK: array("d", [3.0, 4.0])}),
    ]
    found = joined(HEAT, parts)
    assert (found.ranks, found.workers, found.at, found.attempt) == ([0, 1, 2], [0, 5, 6], [1.0, 2.0], [1, 2])
    assert [list(row) for row in found.rows(PEAK)] == [
        [1.0, 2.0, pytest.approx(NAN, nan_ok=True)],
        [pytest.approx(NAN, nan_ok=True), 3.0, 4.0],
    ]
