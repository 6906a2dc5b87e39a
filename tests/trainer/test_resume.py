"""A resumed run equals an uninterrupted one bit for bit (`checkpoints/snapshots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, config, same_bits, train


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "mode"), [(2, "thread"), (4, "sync")])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path: Path, ranks: int, mode: str) -> None:
    through = run_ranks(ranks, train, config(tmp_path / "through", **EXACT))
    changes = {**EXACT, "checkpoint": {"path": str(tmp_path / "saved"), "mode": mode}}
    run_ranks(ranks, train, config(tmp_path, **changes), 3)
    resumed = run_ranks(ranks, train, config(tmp_path, **changes))
    assert '"event": "resumed", "step": 3' in (tmp_path / "report" / "metrics.jsonl").read_text()
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


@pytest.mark.torch
def test_what_may_change_from_one_attempt_to_the_next_and_what_may_not(tmp_path: Path) -> None:
    """Precision, batch and length may change; another model or optimizer is an error. BatchNorm needs two samples per
    pass.
    """
    toy: dict[str, Any] = {"name": "tests.trainer.toy:Toy", "options": {"double": False, "norm": True}}
    changes: dict[str, Any] = {"task": toy, "optimizer": {"name": "sgd", "lr": 0.1}, "precision": {"compute": "fp32"}}
    run_ranks(1, train, config(tmp_path, **changes))
    for other in ({"task": {**toy, "options": {"double": False, "hidden": 9}}}, {"optimizer": {"name": "adamw"}}):
        with pytest.raises(RankFailed, match=r"ConfigError: .*step-000000006\.1 is of another model or optimizer: set"):
            run_ranks(1, train, config(tmp_path, **{**changes, **other}))
    changes |= {"precision": {"compute": "fp16"}, "batch": {"size": 10}, "steps": 9}
    [longer] = run_ranks(1, train, config(tmp_path, **changes))
    assert (longer["state"].step, longer["state"].position) == (9, 6 * 8 + 3 * 10)
