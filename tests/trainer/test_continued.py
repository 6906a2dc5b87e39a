"""Ranks that survive a fault train on in their own processes, and the run is the one that nothing would have
disturbed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.continued_runs import Fault, Run
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, largest_difference, train

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    [alone] = run_ranks(1, train, config(steps=20))
    return alone


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "stepped"])
@pytest.mark.parametrize(("size", "rank"), [(2, 1), (3, 0)])
def test_a_rank_is_lost_anywhere_in_a_step(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, size: int, rank: int
) -> None:
    run = Run(tmp_path / "run", config(tmp_path, steps=20), size, {(rank, 0): (where, 7)})
    results = run.go()
    print(run.orders, run.said())
    for result in results:
        assert largest_difference(result["weights"], undisturbed["weights"]) < 1e-12
