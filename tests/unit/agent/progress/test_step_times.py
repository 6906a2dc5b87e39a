"""What a step takes is derived from when steps came, where a rank doesn't say it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.agent.progress.step_times import INTERVAL_SECONDS, StepTimes
from trainmaster_operator.wire.ranks import RankProgress

POLL_SECONDS = 0.25


def polled(ends: list[float]) -> Iterator[tuple[int, float]]:
    """Yields (steps done, when an agent saw that), of steps that ended at these times."""
    now, seen = 0.0, 0
    while seen < len(ends):
        now += POLL_SECONDS
        done = sum(end <= now for end in ends[seen : seen + 1000])
        if done:
            seen += done
            yield seen, now


def derived(times: StepTimes, steps: Iterator[tuple[int, float]] | list[tuple[int, float]]) -> list[float | None]:
    return [times.complete(RankProgress(step=step), now).step_seconds for step, now in steps]


def ends_of(durations: list[float]) -> list[float]:
    return [sum(durations[: number + 1]) for number in range(len(durations))]


@given(seconds=st.floats(0.02, 90.0), start=st.floats(0.0, 100.0))
def test_a_steady_speed_is_found_a_few_seconds_after_the_first_step(seconds: float, start: float) -> None:
    steps = max(3, int(20 / seconds))
    ends = [start + seconds * number for number in range(1, steps + 1)]
    found = list(zip(polled(ends), derived(StepTimes(), polled(ends)), strict=True))
    assert found[0][1] is None, "one report says no speed"
    limit = found[0][0][1] + max(INTERVAL_SECONDS, seconds) + seconds + 2 * POLL_SECONDS
    for (_, now), each in found:
        assert each is None or each == pytest.approx(seconds, rel=0.12)
        assert each is not None or now < limit


@given(pauses=st.lists(st.integers(0, 119), max_size=3, unique=True), pause=st.floats(5.0, 1000.0))
def test_an_evaluation_between_steps_does_not_change_it(pauses: list[int], pause: float) -> None:
    durations = [0.5 + (pause if number in pauses else 0.0) for number in range(120)]
    assert derived(StepTimes(), polled(ends_of(durations)))[-1] == pytest.approx(0.5, rel=0.12)


def test_a_new_speed_is_seen_within_half_a_minute() -> None:
    durations = [0.1] * 600 + [0.4] * 75
    assert derived(StepTimes(), polled(ends_of(durations)))[-1] == pytest.approx(0.4, rel=0.1)


def test_what_precedes_the_first_step_says_nothing_of_its_speed() -> None:
    """It reports 0, restores its checkpoint of step 5,000 and compiles for a minute."""
    reports = [(0, 1.0), (5_001, 61.0), (5_006, 66.0)]
    assert derived(StepTimes(), reports) == [None, None, 1.0]
    times = StepTimes()
    begun = [RankProgress(step=step, start_step=40) for step in (40, 41, 46)]
    seen = [times.complete(each, now).step_seconds for each, now in zip(begun, (1.0, 61.0, 66.0), strict=True)]
    assert seen == [None, None, 1.0]


def test_a_report_without_a_new_step_keeps_what_was_known() -> None:
    assert derived(StepTimes(), [(1, 0.0), (6, 5.0), (6, 300.0), (6, 301.0)])[1:] == [1.0, 1.0, 1.0]


def test_a_step_that_goes_back_begins_anew() -> None:
    assert derived(StepTimes(), [(1, 0.0), (6, 5.0), (2, 6.0), (4, 12.0)]) == [None, 1.0, None, 3.0]


def test_what_a_rank_has_said_itself_is_never_derived() -> None:
    times = StepTimes()
    derived(times, [(1, 0.0), (6, 5.0)])
    assert times.complete(RankProgress(step=11, step_seconds=0.3), 10.0).step_seconds == 0.3
    assert times.complete(RankProgress(step=16), 15.0).step_seconds is None


def test_a_rank_that_says_no_step_has_no_speed() -> None:
    assert StepTimes().complete(RankProgress(loss=1.0), 0.0) == RankProgress(loss=1.0)
