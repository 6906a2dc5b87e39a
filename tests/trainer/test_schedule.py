"""The learning rate follows an exact sequence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainloop.optimization.schedule import Schedule, ScheduleSettings


def rates(total: int, batch: int = 32, **settings: Any) -> list[float]:
    schedule = Schedule(ScheduleSettings.model_validate(settings), total, batch)
    return [schedule.factor(update) for update in range(total)]


def test_warmup_of_the_first_five_percent_then_a_half_cosine() -> None:
    sequence = rates(100)
    assert sequence[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert sequence[5:] == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 95)) for step in range(95)])


def test_a_linear_rate_falls_to_the_minimum() -> None:
    assert rates(6, kind="linear", warmup=2, minimum=0.1) == pytest.approx([0.5, 1.0, 1.0, 0.775, 0.55, 0.325])


def test_a_constant_rate_stays() -> None:
    assert rates(4, kind="constant", warmup=0) == [1.0] * 4


def test_restarts_decay_and_lengthen() -> None:
    sequence = rates(14, kind="cosine_restarts", warmup=2, period=4, period_factor=2, decay=0.9)
    first = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    second = [0.9 * 0.5 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    assert sequence == pytest.approx([0.5, 1.0, *first, *second])


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_peak_scales_with_the_batch_over_the_reference(scaling: str, factor: float) -> None:
    assert max(rates(20, batch=128, scaling=scaling, reference_batch=32)) == pytest.approx(factor)


@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "cosine_restarts"]),
    warmup=st.floats(0, 30),
    total=st.integers(1, 300),
    minimum=st.floats(0, 1),
)
def test_the_rate_never_leaves_zero_to_peak_and_depends_on_the_update_alone(
    kind: str, warmup: float, total: int, minimum: float
) -> None:
    settings = {"kind": kind, "warmup": warmup, "minimum": minimum, "period": 7, "decay": 0.8}
    sequence = rates(total, **settings)
    assert all(0 <= rate <= 1 + 1e-12 for rate in sequence)
    resumed = Schedule(ScheduleSettings.model_validate(settings), total, 32)
    assert [resumed.factor(update) for update in range(total // 2, total)] == sequence[total // 2 :]


def test_a_schedule_that_lacks_a_number_names_it() -> None:
    with pytest.raises(ValidationError, match="period is missing"):
        ScheduleSettings.model_validate({"kind": "cosine_restarts"})
    with pytest.raises(ValidationError, match="reference_batch is missing"):
        ScheduleSettings.model_validate({"scaling": "linear"})
