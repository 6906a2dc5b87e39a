"""A run that resumes from memory after a fault equals an uninterrupted one, bit for bit (`recovery`,
`checkpoints/surviving`).

Both fewer and more ranks than before are tested for FSDP2, whose weights then move between ranks. All DDP ranks have
everything, and ZeRO-1's parts move as FSDP2's do.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.faults import FAULTS, Fault, attempt, began, sealed
from tests.trainer.faults import train as train_until
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import EXACT, UNEVEN, Toy, config, largest_difference, same_bits, train
from trainloop.config import Config
from trainloop.data import Batch
from trainloop.recovery.snapshots import Snapshots

#: BatchNorm's statistics are included: they change before the weights do, and rank 0's count.
NORMED: dict[str, Any] = {
    **EXACT,
    "task": {**EXACT["task"], "options": {**EXACT["task"]["options"], "norm": True}},
    "batch": {"size": 16},
}


@cache
def uninterrupted(ranks: int) -> list[dict[str, Any]]:
    """Returns each rank's results after a run with `NORMED`."""
    return run_ranks(ranks, train, config(None, **NORMED))


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "victim"), [(2, 1), (4, 0)])
def test_a_run_goes_on_after_a_kill_as_if_there_had_been_none(tmp_path: Path, ranks: int, victim: int) -> None:
    settings = config(None, **NORMED)
    through = uninterrupted(ranks)
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
    """The first snapshot comes after the fourth step, the next ones when two thousandths of the time pay for them."""
    settings = config(None, **NORMED)
    through = uninterrupted(ranks)
    memory = tmp_path / "memory"
    first = attempt(1, ranks, memory, settings, dict.fromkeys(range(ranks), ("kill", 6)))
    assert first == ["SIGKILL"] * ranks and sealed(memory) == ["1-4-0-of-1.sealed"] * ranks
    resumed = attempt(2, ranks, memory, settings)
    assert began(resumed) == [4] * ranks
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


@pytest.mark.torch
def test_a_checkpoint_that_is_newer_than_what_is_in_memory_counts(tmp_path: Path) -> None:
    """A stopped run saves after a later step than that of its snapshot and of the state that it wrote at the signal."""
    settings = config(tmp_path / "disk", **NORMED)
    through = uninterrupted(2)
    memory = tmp_path / "memory"
    attempt(1, 2, memory, settings, dict.fromkeys(range(2), ("terminate", 4)))
    assert sealed(memory), "there is something older"
    resumed = attempt(2, 2, memory, settings)
    assert began(resumed) == [5, 5]
    for rank in range(2):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_a_run_whose_ranks_have_parts_goes_on_from_the_last_snapshot(tmp_path: Path, strategy: str) -> None:
    """A killed rank's state is in its worker's memory, as of the fourth step."""
    ranks = 3
    settings = config(None, **{**EXACT, "parallel": {"strategy": strategy, "bucket_mb": 0.004}})
    through = run_ranks(ranks, train, settings)
    attempt(1, ranks, tmp_path, settings, {1: ("kill", 5)}, local_ranks=ranks)
    resumed = attempt(2, ranks, tmp_path, settings, local_ranks=ranks)
    assert began(resumed) == [4] * ranks and sealed(tmp_path) == []
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


@pytest.mark.torch
@pytest.mark.parametrize(("killed", "step"), [([1], 5), ([2, 3], 5), ([0, 1, 2, 3], 4)])
def test_where_parts_have_replicas_one_of_each_is_enough(tmp_path: Path, killed: list[int], step: int) -> None:
    """The counterparts of a killed rank have written the same state; if all are killed, there is a snapshot."""
    settings = config(None, **{**EXACT, "parallel": {"strategy": "fsdp", "data": [2, 2]}})
    through = run_ranks(4, train, settings)
    attempt(1, 4, tmp_path, settings, dict.fromkeys(killed, ("kill", 5)), local_ranks=2)
    if killed == [1]:
        (tmp_path / "worker-0").rename(tmp_path / "lost")
    resumed = attempt(2, 4, tmp_path, settings, local_ranks=2)
    assert began(resumed) == [step] * 4
    for rank in range(4):
        # The generators of ranks whose pod is lost get new seeds, and dropout draws from them.
        assert killed == [1] or same_bits(resumed[rank]["weights"], through[rank]["weights"])


def in_forward(settings: Config, fault: Fault | None) -> dict[str, Any]:
    """Train, and meet the fault in a step's forward, before its last layer."""
    true = Toy.loss

    def loss(task: Toy, model: Any, batch: Batch) -> torch.Tensor:
        def meet(*_: object) -> None:
            FAULTS[fault[0]]()
            memory = Path(os.environ["TRAINMASTER_MEMORY_DIR"])
            while f"1-{fault[1] - 1}-{os.environ['RANK']}-of-2.sealed" not in sealed(memory):
                time.sleep(0.01)

        if not fault or not torch.is_grad_enabled() or task.calls + 1 != fault[1]:
            return true(task, model, batch)
        with getattr(model, "module", model)[-2].register_forward_hook(meet):
            return true(task, model, batch)

    Toy.loss = loss  # type: ignore[method-assign]
    return train_until(settings, None)


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_a_part_that_is_saved_within_a_step_is_that_of_the_step_before(tmp_path: Path, strategy: str) -> None:
    """FSDP2 has whole weights then, and BatchNorm has new statistics. One rank fails in its forward, and the other in
    its backward, where it loses the first.
    """
    settings = config(None, **{**NORMED, "parallel": {"strategy": strategy}})
    through = run_ranks(2, train, settings)
    attempt(1, 2, tmp_path, settings, {1: ("fail", 7)}, in_forward, local_ranks=2)
    resumed = attempt(2, 2, tmp_path, settings, local_ranks=2)
    assert began(resumed) == [6] * 2
    for rank in range(2):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


@pytest.mark.torch
def test_a_part_that_is_saved_at_sigterm_leaves_fsdp_the_weights_of_its_forward(tmp_path: Path) -> None:
    settings = {**EXACT, "parallel": {"strategy": "fsdp"}}
    through = run_ranks(2, train, config(None, **settings))
    disk, memory = config(tmp_path / "disk", **settings), tmp_path / "memory"
    attempt(1, 2, memory, disk, dict.fromkeys(range(2), ("terminate", 6)), in_forward)
    resumed = attempt(2, 2, memory, disk)
    assert began(resumed) == [7] * 2, "the step was made to its end, and the run stopped after the next"
    for rank in range(2):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


def until_given(settings: Config, fault: Fault | None) -> dict[str, Any]:
    """Train, and meet the fault once a thread has sent the snapshot to the neighbour."""
    if fault:
        true = FAULTS[fault[0]]

        def when_given() -> None:
            for each in gc.get_objects():
                if isinstance(each, Snapshots):
                    each.wait(30)
            true()

        FAULTS[fault[0]] = when_given
    return train_until(settings, fault)


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_a_lost_pods_part_is_in_its_neighbours_memory(tmp_path: Path, strategy: str) -> None:
    settings = config(None, **{**UNEVEN, "parallel": {"strategy": strategy}})
    through = run_ranks(2, train, settings)
    attempt(1, 2, tmp_path, settings, {1: ("kill", 5)}, until_given)
    shutil.rmtree(tmp_path / "worker-1")
    resumed = attempt(2, 2, tmp_path, settings)
    assert began(resumed) == [4] * 2
    assert largest_difference(resumed[1]["weights"], through[0]["weights"]) == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("strategy", "before", "after"), [("ddp", 4, 2), ("zero1", 2, 3), ("fsdp", 2, 3), ("fsdp", 4, 2)]
)
def test_another_number_of_ranks_goes_on_from_memory(tmp_path: Path, strategy: str, before: int, after: int) -> None:
    """In double precision the runs agree up to rounding, because the order of adding differs. Every sample is seen
    once.
    """
    settings = config(None, **{**UNEVEN, "parallel": {"strategy": strategy}})
    [through, *_] = run_ranks(after, train, settings)
    attempt(1, before, tmp_path, settings, {0: ("kill", 5)}, local_ranks=before // 2)
    resumed = attempt(2, after, tmp_path, settings)
    assert began(resumed) == [5 if strategy == "ddp" else 4] * after
    assert largest_difference(resumed[0]["weights"], through["weights"]) < 1e-12
