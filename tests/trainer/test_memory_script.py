"""A user's own script keeps its state with `Recovery`, and resumes from it as if nothing had happened
(`recovery/script`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.faults import FAULTS, Fault, attempt, sealed
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import same_bits
from trainloop.recovery import Recovery

STEPS = 8


def script(settings: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    """Train by a hand-written loop, with everything that has a state: BatchNorm, dropout, a scheduler."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Dropout(0.3)]
    layers += [module for _ in range(4) for module in (nn.Linear(40, 40), nn.Tanh())]
    network = nn.Sequential(*layers, nn.Linear(40, 3))
    model: nn.Module = network
    if settings.get("sharded"):
        from torch.distributed.fsdp import fully_shard

        fully_shard(network)
    else:
        # Several buckets, which are reordered after the first step.
        model = DistributedDataParallel(network, bucket_cap_mb=0.004)
    torch.manual_seed(rank)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if settings.get("zero"):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    others = {} if settings.get("alone") else {"scheduler": scheduler}
    recovery = Recovery(model, optimizer, every=settings.get("every", 1000), rehearsal=True, **others)
    seen, reported = [], []
    for step in recovery.steps(STEPS):
        seen.append(step)
        if fault and fault[0] in FAULTS and step == fault[1] + 1 and not settings.get("late"):
            FAULTS[fault[0]]()
        points = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * size + rank))
        loss = nn.functional.cross_entropy(model(points), points[:, :3].argmax(1))
        optimizer.zero_grad()
        if fault and fault[0] == "forward" and step == fault[1] + 1:
            raise RuntimeError("this rank fails between the forward pass and the backward pass")
        loss.backward()
        if fault and fault[0] == "drawn" and step == fault[1] + 1:
            raise RuntimeError("this rank fails when it has drawn random numbers for the step")
        for _ in range(settings.get("updates", 1) + (step == settings.get("more_at"))):
            optimizer.step()
        if fault and fault[0] == "half" and step == fault[1]:
            raise RuntimeError("this rank fails between the update and the step's end")
        if others:
            scheduler.step()
        if settings.get("made"):
            recovery.made()
        if settings.get("late") and fault and step == fault[1] + 1:
            FAULTS[fault[0]]()
        if settings.get("late"):
            dist.all_reduce(loss.detach())
        if settings.get("evaluates"):
            with torch.no_grad():
                model.eval()(points)
                model.train()
        reported.append(loss.item())
        recovery.report(loss=loss.item())
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in state.items()}
    found = {"weights": whole, "seen": seen}
    dist.barrier()
    dist.destroy_process_group()
    return found | {"loss": reported[-1:], "rate": optimizer.param_groups[0]["lr"]}


@cache
def through(ranks: int, **settings: Any) -> list[dict[str, Any]]:
    """Returns the result of an uninterrupted run without any memory; many tests compare with the same one."""
    found: list[dict[str, Any]] = run_ranks(ranks, script, settings, None)
    return found


def equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Returns whether two runs have the same weights, loss and rate on every rank, bit for bit."""
    pairs = list(zip(one, other, strict=True))
    same = all(same_bits(a["weights"], b["weights"]) for a, b in pairs)
    return same and all((a["loss"], a["rate"]) == (b["loss"], b["rate"]) for a, b in pairs)


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "victim"), [(2, 0), (4, 3)])
def test_a_script_goes_on_after_a_kill_as_if_there_had_been_none(tmp_path: Path, ranks: int, victim: int) -> None:
    first = attempt(1, ranks, tmp_path, {}, {victim: ("kill", 3)}, script)
    assert first[victim] == "SIGKILL" and sealed(tmp_path) == ["1-3-0-of-1.sealed"] * (ranks - 1)
    resumed = attempt(2, ranks, tmp_path, {}, None, script)
    rehearsed = [4] if ranks > 2 else []
    assert resumed[0]["seen"] == [*rehearsed, 4, 5, 6, 7, 8]
    assert equal(resumed, through(ranks)) and sealed(tmp_path) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        pytest.param({"alone": True}, 4, id="the optimizer's step is the last change"),
        pytest.param({"alone": True, "updates": 2}, 4, id="of its two steps the second"),
        pytest.param({"made": True}, 4, id="the script says that it has made its last change"),
        pytest.param({}, None, id="nobody knows whether more would change"),
        pytest.param({"alone": True, "more_at": 2}, None, id="steps have had several updates"),
    ],
)
def test_a_fault_between_the_last_change_and_the_steps_end_costs_no_step(
    tmp_path: Path, settings: dict[str, Any], kept: int | None
) -> None:
    settings = {"late": True, **settings}
    attempt(1, 2, tmp_path, settings, {1: ("kill", 3)}, script)
    assert sealed(tmp_path) == ([] if kept is None else [f"1-{kept}-0-of-1.sealed"])
    resumed = attempt(2, 2, tmp_path, settings, None, script)
    assert resumed[0]["seen"] == list(range((kept or 0) + 1, STEPS + 1))
    assert equal(resumed, through(2, **settings))


@pytest.mark.torch
def test_a_sharded_script_goes_on_from_its_snapshots(tmp_path: Path) -> None:
    """No rank holds another rank's shards; all have a snapshot of the fourth step."""
    attempt(1, 2, tmp_path, {"sharded": True}, {1: ("kill", 6)}, script, local_ranks=2)
    resumed = attempt(2, 2, tmp_path, {"sharded": True}, None, script, local_ranks=2)
    assert resumed[0]["seen"] == [5, 6, 7, 8]
    assert equal(resumed, through(2, sharded=True))


@pytest.mark.torch
def test_a_script_with_zero_goes_on_from_the_parts_of_its_optimizer(tmp_path: Path) -> None:
    attempt(1, 2, tmp_path, {"zero": True}, {1: ("kill", 6)}, script, local_ranks=2)
    resumed = attempt(2, 2, tmp_path, {"zero": True}, None, script, local_ranks=2)
    assert resumed[0]["seen"] == [5, 6, 7, 8] and equal(resumed, through(2, zero=True))


@pytest.mark.torch
def test_a_part_that_is_saved_within_a_step_has_the_generators_of_the_step_before(tmp_path: Path) -> None:
    settings, faults = {"sharded": True}, dict.fromkeys(range(2), ("drawn", 6))
    attempt(1, 2, tmp_path, settings, faults, script, local_ranks=2)
    assert "1-6-0-of-2.sealed" in sealed(tmp_path)
    resumed = attempt(2, 2, tmp_path, settings, None, script, local_ranks=2)
    assert resumed[0]["seen"] == [7, 8] and equal(resumed, through(2, **settings))


@pytest.mark.torch
def test_a_part_that_is_saved_while_the_root_is_whole_is_the_part_of_the_step_before(tmp_path: Path) -> None:
    """FSDP2 keeps the root's weights whole from its forward to its backward, in which the other rank loses this one."""
    settings = {"sharded": True}
    attempt(1, 2, tmp_path, settings, {1: ("forward", 6)}, script, local_ranks=2)
    assert sealed(tmp_path)[-2:] == ["1-6-0-of-2.sealed", "1-6-1-of-2.sealed"]
    resumed = attempt(2, 2, tmp_path, settings, None, script, local_ranks=2)
    assert resumed[0]["seen"] == [7, 8] and equal(resumed, through(2, **settings))


@pytest.mark.torch
def test_a_sharded_script_that_evaluates_at_a_steps_end_goes_on_from_its_snapshots(tmp_path: Path) -> None:
    """After a forward without a backward, FSDP2 keeps the root's weights whole until the next step."""
    settings = {"sharded": True, "evaluates": True}
    attempt(1, 2, tmp_path, settings, {1: ("kill", 6)}, script, local_ranks=2)
    resumed = attempt(2, 2, tmp_path, settings, None, script, local_ranks=2)
    assert resumed[0]["seen"] == [5, 6, 7, 8] and equal(resumed, through(2, **settings))


@pytest.mark.torch
def test_without_memory_a_script_goes_on_from_its_disk(tmp_path: Path) -> None:
    disk = {"TRAINMASTER_CHECKPOINT_DIR": str(tmp_path / "disk")}
    attempt(1, 2, tmp_path / "one", {"every": 2}, {0: ("kill", 5)}, script, TRAINMASTER_MEMORY_DIR="", **disk)
    resumed = attempt(2, 2, tmp_path / "two", {"every": 2}, None, script, **disk)
    assert resumed[0]["seen"] == [5, 6, 7, 8] and equal(resumed, through(2))
    # Another job resumes from there too; the run is at its end.
    other = attempt(1, 2, tmp_path / "three", {"every": 2}, None, script, TRAINMASTER_JOB_UID="other", **disk)
    assert other[0]["seen"] == [] and same_bits(other[0]["weights"], resumed[0]["weights"])


def destroying() -> int:
    """Train, and drop the model with the last reference to the group, while one of gloo's threads has work."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recovery = Recovery(model, optimizer)
    for _ in recovery.steps(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    # Not waited for, so that its thread is certainly still working; even one that was waited for may be.
    dist.all_reduce(torch.ones(1), async_op=True)
    dist.destroy_process_group()
    return recovery.step


@pytest.mark.torch
def test_a_script_that_destroys_its_group_before_its_model_doesnt_hang() -> None:
    assert run_ranks(2, destroying, seconds=60) == [2, 2]
