"""The order of the samples doesn't depend on the number of ranks (`data`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, train
from trainloop.optimization.schedule import Schedule

pytestmark = pytest.mark.torch


def test_every_sample_is_seen_once_when_the_number_of_ranks_changes_in_mid_epoch(tmp_path: Path) -> None:
    """The learning rate goes on where it was, too."""
    changes: dict[str, Any] = {**UNEVEN, "epochs": 1, "steps": None, "batch": {"size": 4}}
    before = run_ranks(2, train, config(tmp_path, **changes), 2)
    after = run_ranks(4, train, config(tmp_path, **changes))
    seen = [sample for rank in [*before, *after] for sample in rank["seen"]]
    # A rank makes one pass over sample 0 before it loads (the trainer's warm-up); those are not training.
    warm_up = 4 * 2 * 2
    assert sorted(seen) == sorted([*range(20), *[0] * warm_up])
    schedule = Schedule(config(**changes).schedule, total=5, batch=4)
    assert before[0]["rates"] + after[0]["rates"] == [0.05 * schedule.factor(update) for update in range(5)]


def test_the_global_batch_of_the_first_start_is_kept_when_the_number_of_ranks_changes(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**UNEVEN, "batch": {"per_rank": 2, "accumulation": 2}}
    run_ranks(2, train, config(tmp_path, **changes), 2)
    assert run_ranks(1, train, config(tmp_path, **changes))[0]["state"].batch == 8
