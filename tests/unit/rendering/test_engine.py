"""A large `training` is written as JSON that is also YAML, so every reader gets the same values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from trainmaster_operator.rendering.engine import LARGE_TRAINING_BYTES, json_as_yaml, training_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "1e-5",
        "yes",
        "null",
        "~",
        "0x1f",
        "1_000",
        "2026-11-22",
        "a: b",
        "- a",
        "#",
        "\\",
        '"',
        '\\"1e-05\\"',
        "? a",
        "\x85",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, JSON, max_size=4))
@example({"lr": 1e-05, "big": 1e22, "small": -3e-300, "text": "1e-05", "inf": math.inf, "less": -math.inf})
@example({"k" * 1100: {"k" * 3000: 1, "b": [{"k" * 1500: "k" * 1500}]}, "k" * 1024: 2})
@example({"\U0001f600": "\U0001f600 \ufeff \u2028 \x7f \x9f \ufffe"})
@example({"path": "C:\\1e-05\\", "quoted": '"1e-05": NaN'})
def test_it_reads_back_as_the_same_values(value: dict[str, Any]) -> None:
    text = json_as_yaml(value)
    assert text.count("\n") == 1
    assert json.dumps(yaml.safe_load(text)) == json.dumps(value)


def test_not_a_number_stays_one() -> None:
    assert math.isnan(yaml.safe_load(json_as_yaml({"x": math.nan}))["x"])


@pytest.mark.parametrize("values", [10, LARGE_TRAINING_BYTES])
def test_a_small_training_is_for_people(values: int) -> None:
    text = training_text({"optimizer": {"lr": 0.1}, "seeds": [0] * values})
    assert text.startswith("optimizer:\n  lr: 0.1\n") is (values == 10)
    assert yaml.safe_load(text)["seeds"] == [0] * values


def test_what_nests_deep_is_not_blown_up() -> None:
    """In a layout for people, each value is indented by all levels above it."""
    value: Any = [0] * 1000
    for _ in range(60):
        value = {"a": value}
    training = {f"k{n}": value for n in range(20)}
    assert len(training_text(training)) < 2 * len(json.dumps(training))
