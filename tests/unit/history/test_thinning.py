"""`history.thinning`, `curves` and `heat`: fewer points have the whole time, its order, its attempts and its peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.history import curves, heat
from trainmaster.history.curves import NO_STEP, Curves
from trainmaster.history.heat import MEAN, PEAK, Heat
from trainmaster.history.packing import NAN

SECONDS = st.sampled_from([0.0, 10.0, 60.0, 7200.0])
FIGURE = st.floats(0, 1e6, width=32) | st.just(NAN)
# Distances of points, and whether an attempt begins with one.
POINTS = st.lists(st.tuples(st.floats(0.001, 100.0), st.booleans(), FIGURE, FIGURE), max_size=60)
Points = Sequence[tuple[float, bool, float, float]]


def _times(points: Points) -> tuple[list[float], list[int]]:
    at, attempt = [1_000.0], [1]
    for distance, begins, *_ in points[1:]:
        at.append(at[-1] + distance)
        attempt.append(attempt[-1] + begins)
    return at[: len(points)], attempt[: len(points)]


def _curves(points: Points) -> Curves:
    at, attempt = _times(points)
    found = Curves(at, attempt, list(range(len(points))))
    for name, values in found.figures.items():
        values += [loss if name == "loss" else slow for *_, loss, slow in points]
    return found


def _heat(points: Points) -> Heat:
    at, attempt = _times(points)
    values = [value for *_, first, second in points for value in (first, second)]
    return Heat([0, 1], [0, 0], at, attempt, {PEAK: values, "loss": values[:]})


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]


@settings(max_examples=50)
@given(POINTS, SECONDS)
def test_thin_curves_have_the_whole_time_in_order_and_every_peak(points: Points, seconds: float) -> None:
    full, thin = _curves(points), _curves(points).thinned(seconds)
    assert len(thin) <= len(full)
    assert thin.at[-1:] == full.at[-1:] and thin.at == sorted(thin.at) and set(thin.at) <= set(full.at)
    assert not full.at or thin.at[0] - full.at[0] <= seconds
    assert list(dict.fromkeys(thin.attempt)) == list(dict.fromkeys(full.attempt))
    # At most a point for each span of time, and one more for each attempt.
    if seconds and full.at:
        assert len(thin) <= (full.at[-1] // seconds - full.at[0] // seconds + 1) + len(set(full.attempt)) - 1
    slow = "slowestStepSeconds"
    assert max(_known(thin.figures[slow]), default=0) == max(_known(full.figures[slow]), default=0)
    known = _known(full.figures["loss"])
    assert all(min(known) <= value <= max(known) + 1e-6 for value in _known(thin.figures["loss"]))
    # The last step of each attempt says what is done again.
    for attempt in set(full.attempt):
        assert _last_step(thin, attempt) == _last_step(full, attempt)


def _last_step(points: Curves, attempt: int) -> int:
    return max((step for step, of in zip(points.step, points.attempt, strict=True) if of == attempt), default=NO_STEP)


@settings(max_examples=50)
@given(POINTS, SECONDS)
def test_a_straggler_stays_visible_in_thin_heat(points: Points, seconds: float) -> None:
    full, thin = _heat(points), _heat(points).thinned(seconds, with_mean=True)
    for rank in (0, 1):
        slowest = [max(_known([row[rank] for row in found.rows(PEAK)]), default=None) for found in (full, thin)]
        assert slowest[0] == slowest[1]
    for place, row in enumerate(thin.rows(MEAN)):
        for rank in (0, 1):
            assert math.isnan(row[rank]) or row[rank] <= thin.rows(PEAK)[place][rank] + 1e-6


def test_a_point_of_several_says_the_mean_the_peak_or_the_last() -> None:
    full = Curves([10.0, 12.0, 14.0, 21.0], [1, 1, 1, 1], [1, 2, 3, 4])
    for values in full.figures.values():
        values += [4.0, NAN, 2.0, 7.0]
    thin = full.thinned(10.0)
    assert (thin.at, thin.step) == ([14.0, 21.0], [3, 4])
    assert thin.figures["loss"] == [3.0, 7.0]
    assert thin.figures["slowestStepSeconds"] == thin.figures["gradNorm"] == [4.0, 7.0]
    assert thin.figures["goodput"] == thin.figures["timeSpent.productive"] == [2.0, 7.0]


def test_a_rank_that_was_slow_once_and_one_that_is_always_are_told_apart() -> None:
    times = [float(10 + n) for n in range(10)]
    rows = [[9.0 if n == 3 else 1.0, 2.0, NAN] for n in range(10)]
    full = Heat([0, 1, 2], [0, 0, 1], times, [1] * 10, {PEAK: [value for row in rows for value in row]})
    thin = full.thinned(10.0, with_mean=True)
    assert list(thin.rows(PEAK)[0][:2]) == [9.0, 2.0] and math.isnan(thin.rows(PEAK)[0][2])
    assert list(thin.rows(MEAN)[0][:2]) == [pytest.approx(fmean(row[0] for row in rows)), 2.0]


@settings(max_examples=25)
@given(POINTS)
def test_a_block_of_curves_is_read_as_it_was_written(points: Points) -> None:
    full = _curves(points)
    found = Curves.of_block(full.to_block(), list(curves.FIGURES))
    assert found.at == pytest.approx(full.at, abs=0.001) and (found.step, found.attempt) == (full.step, full.attempt)
    for name, values in full.figures.items():
        assert found.figures[name] == pytest.approx(values, nan_ok=True)


def test_a_block_of_another_release_has_what_both_know() -> None:
    full = _curves([(1.0, False, 2.5, 3.5)])
    layout = [name if name != "loss" else "curvature" for name in curves.FIGURES]
    found = Curves.of_block(full.to_block(), layout)
    assert found.figures["slowestStepSeconds"] == [3.5] and math.isnan(found.figures["loss"][0])
    with pytest.raises(ValueError, match="a block of 1 points can't be read"):
        Curves.of_block(full.to_block(), layout[1:])


@settings(max_examples=25)
@given(POINTS)
def test_a_block_of_heat_is_read_as_it_was_written(points: Points) -> None:
    full = _heat(points)
    found = Heat.of_block(full.to_block())
    assert (found.ranks, found.workers, found.attempt) == (full.ranks, full.workers, full.attempt)
    largest = max(_known(full.figures[PEAK]), default=0.0)
    assert found.figures[PEAK] == pytest.approx(full.figures[PEAK], rel=5e-4, abs=largest * 1e-9, nan_ok=True)
    alone = Heat.of_block(full.to_block(), MEAN)
    # Where no mean stands beside the peak, they are one.
    assert alone.figures == {MEAN: pytest.approx(found.figures[PEAK], nan_ok=True)}


def test_heat_of_groups_of_different_sizes_is_one_map() -> None:
    parts = [
        Heat([0, 1], [0, 1], [1.0], [1], {PEAK: [1.0, 2.0]}),
        Heat([1, 2], [5, 6], [2.0], [2], {PEAK: [3.0, 4.0]}),
    ]
    found = heat.joined(parts)
    assert (found.ranks, found.workers, found.at, found.attempt) == ([0, 1, 2], [0, 5, 6], [1.0, 2.0], [1, 2])
    assert [list(row) for row in found.rows(PEAK)] == [
        [1.0, 2.0, pytest.approx(NAN, nan_ok=True)],
        [pytest.approx(NAN, nan_ok=True), 3.0, 4.0],
    ]
