"""A run that goes on from memory after a fault equals one that was never interrupted, to the bit
(`recovery`, `checkpoints/surviving`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.faults import attempt, began, sealed
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import EXACT, config, same_bits, train

#: BatchNorm's statistics are in it too: they change before the weights do, and rank 0's count.
NORMED: dict[str, Any] = {
    **EXACT,
    "task": {**EXACT["task"], "options": {**EXACT["task"]["options"], "norm": True}},
    "batch": {"size": 16},
}


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "victim"), [(2, 0), (2, 1), (4, 2), (4, 0)])
def test_a_run_goes_on_after_a_kill_as_if_there_had_been_none(tmp_path: Path, ranks: int, victim: int) -> None:
    settings = config(None, **NORMED)
    through = run_ranks(ranks, train, settings)
    memory = tmp_path / "memory"
    first = attempt(1, ranks, memory, settings, {victim: ("kill", 3)})
    assert first[victim] == "SIGKILL" and sealed(memory) == ["1-3-0-of-1.sealed"] * (ranks - 1)
    resumed = attempt(2, ranks, memory, settings)
    assert began(resumed) == [3] * ranks
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])
    assert sealed(memory) == []


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_where_no_rank_survives_the_run_goes_on_from_a_snapshot(tmp_path: Path, ranks: int) -> None:
    """Snapshots come after the fourth step, and then when a hundredth of the time pays for them."""
    settings = config(None, **NORMED)
    through = run_ranks(ranks, train, settings)
    memory = tmp_path / "memory"
    first = attempt(1, ranks, memory, settings, dict.fromkeys(range(ranks), ("kill", 6)))
    assert first == ["SIGKILL"] * ranks and sealed(memory) == ["1-4-0-of-1.sealed"] * ranks
    resumed = attempt(2, ranks, memory, settings)
    assert began(resumed) == [4] * ranks
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])
