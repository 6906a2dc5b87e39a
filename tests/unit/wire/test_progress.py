"""A script's progress file: what is well-formed in it is kept."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import PLAIN
from trainmaster.wire.progress import RankProgress


@given(PLAIN | st.dictionaries(st.sampled_from(["step", "loss", "section", "result", "message"]), PLAIN))
def test_any_progress_is_bounded_and_finite(value: Any) -> None:
    found = RankProgress.salvage(value)
    if found is not None:
        assert len(json.dumps(found.to_wire(), allow_nan=False)) < 8_192
        assert RankProgress.parse(found.to_wire()) == found, "what an agent keeps is what its operator accepts"
