"""Quantities have a canonical form (rules of apimachinery's `quantity_test.go`), as have ages (`pkg/util/duration`)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_local.ages import age, human_duration
from trainmaster_local.quantities import Quantity, QuantityError, canonical, parse


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1.5", "1500m"),
        ("1000m", "1"),
        ("0.5Gi", "512Mi"),
        ("1024Mi", "1Gi"),
        ("1500Mi", "1500Mi"),
        ("512", "512"),
        ("1000000", "1M"),
        ("1e3", "1e3"),
        ("100", "100"),
        ("0.1", "100m"),
        ("0", "0"),
        ("-1500m", "-1500m"),
        (0.5, "500m"),
        (2, "2"),
        ("0.5Ki", "512"),
        ("1.00000000001", "1000000001n"),
        ("Gi", "0"),
        (" 1 ", "1"),
    ],
)
def test_canonical_form(written: str | float, read: str) -> None:
    assert canonical(written) == read


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1gi", "1.5.", "1GB"])
def test_text_that_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="quantities must match the regular expression"):
        parse(text)


@pytest.mark.parametrize("text", ["--1", "1e", "1e+", "1i", "1Ki5", "1ee3"])
def test_text_whose_suffix_is_none(text: str) -> None:
    with pytest.raises(QuantityError, match="unable to parse quantity's suffix"):
        parse(text)


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_canonical_form_keeps_the_amount(number: int, suffix: str) -> None:
    quantity = parse(f"{number}{suffix}")
    assert parse(str(quantity)).value == quantity.value
    assert canonical(str(quantity)) == str(quantity)


def test_binary_amounts_that_are_no_whole_bytes_are_written_in_decimal() -> None:
    assert str(Quantity(Fraction(3, 2), "binary")) == "1500m"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400, "2y"),
        (2 * 365 * 86400 + 86400, "2y1d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_human_duration(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def test_age_of_what_has_no_time() -> None:
    assert age(None, 0) == "<unknown>"
    assert age("1970-01-01T00:00:10Z", 20.0) == "10s"
