"""The limits of a silence follow from a job's own durations, and are careful while little is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.agent.progress import usual as module
from trainmaster_operator.agent.progress.usual import KEPT, LEARNT, Durations, Usual
from trainmaster_operator.agent.settings import LONGEST_FIRST_SECONDS, LONGEST_SECONDS


def learnt(seconds: float, count: int = 100, section: str = "train") -> Usual:
    usual = Usual()
    for _ in range(count):
        usual.add(section, seconds)
    return usual


@given(st.lists(st.floats(0.001, 1_000), min_size=1, max_size=KEPT - 1), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_is_exact_to_five_percent(durations: list[float], share: float) -> None:
    kept = Durations()
    for seconds in durations:
        kept.add(seconds)
    exact = sorted(durations)[max(0, -int(-share * len(durations) // 1) - 1)]
    assert exact * 0.999 <= kept.quantile(share) <= exact * 1.051


@given(st.lists(st.floats(0, 1e9), max_size=5_000))
def test_the_histogram_stays_small(durations: list[float]) -> None:
    kept = Durations()
    for seconds in durations:
        kept.add(seconds)
    assert kept.count <= KEPT and len(kept._bins) < 600


@pytest.mark.parametrize(
    ("step", "notice", "restart"),
    [(0.02, 5.0, 60.0), (0.5, 5.0, 60.0), (1.5, 7.5, 60.0), (10.0, 50.0, 300.0), (120.0, 600.0, 1_200.0)],
)
def test_a_step_has_five_times_its_time_and_a_restart_thirty_times(step: float, notice: float, restart: float) -> None:
    limits = learnt(step).limits("train")
    assert limits.notice == pytest.approx(notice, rel=0.051)
    assert limits.restart == pytest.approx(restart, rel=0.051)
    assert limits.usual == pytest.approx(step, rel=0.051)


@given(st.floats(0.001, 3_000), st.integers(0, 100))
def test_a_restart_is_never_near_a_notice_and_only_long_steps_exceed_the_former_limit(
    seconds: float, count: int
) -> None:
    limits = learnt(seconds, count).limits("train")
    assert limits.restart >= 2 * limits.notice and limits.restart >= 60
    assert limits.restart <= max(LONGEST_SECONDS, 2 * limits.notice)
    if count >= LEARNT:
        assert limits.notice >= 5 * seconds * 0.999


def test_little_knowledge_makes_careful() -> None:
    assert learnt(0.02, LEARNT - 1).limits("train")[:2] == (30.0, LONGEST_SECONDS)
    assert learnt(10.0, 3).limits("train").notice == pytest.approx(100, rel=0.051)
    nothing = Usual()
    assert nothing.limits("evaluate") == nothing.limits("train") == (120.0, LONGEST_SECONDS, None)
    assert learnt(10.0).limits("checkpoint").notice == pytest.approx(200, rel=0.051), "the first save of long steps"
    assert learnt(0.02).limits("checkpoint").notice == 120.0


def test_sections_are_apart() -> None:
    usual = learnt(0.02)
    for _ in range(LEARNT):
        usual.add("evaluate", 40.0)
    assert usual.limits("train").notice == 5.0
    assert usual.limits("evaluate").notice == pytest.approx(200, rel=0.051)


def test_the_evaluations_of_a_script_without_sections_do_not_raise_the_limit_of_its_steps() -> None:
    usual = learnt(10.0)
    for _ in range(20):
        usual.add("train", 300.0)
        for _ in range(20):
            usual.add("train", 10.0)
    assert usual.limits("train").notice == pytest.approx(50, rel=0.051)


def test_a_new_speed_is_learnt() -> None:
    usual = learnt(10.0)
    for _ in range(module.CHANGED - 1):
        usual.add("train", 70.0)
    assert usual.limits("train").notice == pytest.approx(50, rel=0.051), "so many could be evaluations"
    usual.add("train", 70.0)
    assert usual.limits("train").notice == pytest.approx(700, rel=0.051), "carefully at first"
    for _ in range(LEARNT):
        usual.add("train", 70.0)
    assert usual.limits("train").notice == pytest.approx(350, rel=0.051)


def test_the_first_attempt_bounds_the_time_to_the_first_step_of_later_ones() -> None:
    usual = Usual()
    assert usual.first_limits()[:2] == (120.0, LONGEST_FIRST_SECONDS)
    usual.add_first_step(4.0)
    assert usual.first_limits() == (10.0, 60.0, 4.0)
    usual.add_first_step(100.0)
    usual.add_first_step(0.3)
    assert usual.first_limits() == (250.0, 500.0, 100.0), "the longest counts, because a rank may have continued"
    usual.add_first_step(1_000.0)
    assert usual.first_limits().restart >= 2 * usual.first_limits().notice


def test_jitter_never_exceeds_the_limit() -> None:
    generator = random.Random(1)
    usual = learnt(0.5)
    for _ in range(20_000):
        seconds = 0.5 * generator.lognormvariate(0, 0.3)
        assert seconds < usual.limits("train").notice
        usual.add("train", seconds)
