"""A script's progress file is read, and its well-formed fields are kept."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import PLAIN
from trainmaster_operator.wire.limits import MAX_METRICS
from trainmaster_operator.wire.ranks import RankProgress


def test_figures_travel_under_the_protocols_names() -> None:
    said = {"step": 3, "gradNorm": 1.5, "learningRate": 0.01, "stepSeconds": 0.5, "computeSeconds": 0.25}
    expected = RankProgress(step=3, grad_norm=1.5, learning_rate=0.01, step_seconds=0.5, compute_seconds=0.25)
    for found in (RankProgress.salvage({**said, "grad_norm": 2.0}), RankProgress.parse(said)):
        assert found == expected and found.to_wire() == said
    assert RankProgress.salvage({**said, "gradNorm": "high", "learningRate": float("nan")}) == expected._replace(
        grad_norm=None, learning_rate=None
    )


def test_a_rank_says_whether_it_can_continue_in_which_group_and_why_not() -> None:
    written = {"continuing": "able", "group": 4, "cannotContinue": "x" * 200}
    found = RankProgress.salvage({**written, "cannotContinue": "x" * 300})
    assert found == RankProgress(continuing="able", group=4, cannot_continue="x" * 200)
    assert found.to_wire() == written and RankProgress.parse(written) == found
    assert RankProgress.salvage({"continuing": "soon", "group": -1, "cannotContinue": 3}) == RankProgress()


def test_a_rank_may_report_any_metric_with_a_plain_name() -> None:
    names = ["accuracy", "val/f1.micro", "_a-b", "x" * 64, *("1st", "a b", 'a"b', "x" * 65, "é", "")]
    names += ["loss", "stepSeconds", "goodput", "gpuUtilization"]
    found = RankProgress.salvage({"metrics": {**dict.fromkeys(names, 1), "nan": float("nan"), "text": "1"}})
    assert found is not None and dict(found.metrics) == dict.fromkeys(names[:4], 1.0)
    assert RankProgress.parse(found.to_wire()) == found
    many = RankProgress.parse({"metrics": {f"m{number}": number for number in range(1_000)}})
    assert len(many.metrics) == MAX_METRICS


@given(PLAIN | st.dictionaries(st.sampled_from(["step", "loss", "section", "result", "message", "metrics"]), PLAIN))
def test_any_progress_is_bounded_and_finite(value: Any) -> None:
    found = RankProgress.salvage(value)
    if found is not None:
        assert len(json.dumps(found.to_wire(), allow_nan=False)) < 8_192
        assert RankProgress.parse(found.to_wire()) == found, "what an agent keeps is what its operator accepts"
