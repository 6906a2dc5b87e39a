"""The status' times keep their milliseconds, and a text that isn't a time is read as none."""

from __future__ import annotations

import pytest

from tests.unit.reconciling.builders import (
    NOW,
)
from trainmaster_operator.api.times import since, to_seconds, to_text


def test_milliseconds_survive_and_are_rounded_up() -> None:
    assert to_text(NOW + 0.1231) == "2026-11-21T04:00:00.124Z"
    assert to_seconds(to_text(NOW + 0.123)) == pytest.approx(NOW + 0.123, abs=1e-6)


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-99-99T00:00:00Z"])
def test_what_is_no_time_is_none(text: str | None) -> None:
    assert to_seconds(text) is None
    assert since(NOW, text) == 0


def test_a_time_without_zone_is_utc() -> None:
    assert to_seconds("2026-11-21T04:00:00") == NOW


def test_an_interval_is_never_negative() -> None:
    assert since(NOW, to_text(NOW + 10)) == 0
    assert since(NOW, to_text(NOW - 10)) == pytest.approx(10)
