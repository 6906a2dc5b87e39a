"""A script with `Recovery` and `parts` trains on in its processes when ranks are lost, with the whole global batch, and
ends as an undisturbed run does (`recovery/continuation`, `continuing`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.continued import assert_same, ends, starting

STEPS = 150


def script(folder: Path, settings: dict[str, Any]) -> None:
    """Train by a hand-written loop, in fp64; each rank writes its weights."""
    from trainloop.recovery import Recovery

    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Dropout(0.2), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )
    model = DistributedDataParallel(network, bucket_cap_mb=0.004)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    path = folder / "disk" if settings.get("every") else None
    others: dict[str, Any] = {"scheduler": scheduler}
    if settings.get("kind") == "another optimizer":
        others["second"] = torch.optim.SGD(network.parameters(), lr=1e-3)
    if settings.get("kind") == "an average of weights":
        others["average"] = torch.optim.swa_utils.AveragedModel(nn.Linear(100, 100))
    recovery = Recovery(model, optimizer, every=settings.get("every", 7), path=path, **others)
    count = settings.get("count", size)
    for step in recovery.steps(STEPS):
        losses = torch.zeros(())
        for part in range(1) if settings.get("kind") == "no parts" else recovery.parts(count):
            points = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * 100 + part))
            loss = nn.functional.cross_entropy(model(points), points[:, :3].argmax(1)) * size / count
            loss.backward()
            losses += loss.detach()
        optimizer.step(*([lambda: 0.0] if settings.get("kind") == "a closure" else []))
        optimizer.zero_grad()
        scheduler.step()
        dist.all_reduce(losses)  # a metric
        recovery.report(loss=losses.item())
        if not (folder / "go").exists():  # until the test has done what it does
            time.sleep(0.02 if step < STEPS - 60 else 0.1)
    torch.save({name: value.detach() for name, value in network.state_dict().items()}, folder / f"end-{rank}")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    with starting(tmp_path, script) as start:
        yield start


@pytest.mark.parametrize(("size", "count"), [(2, 2), (3, 5), (4, 4)])
def test_ranks_go_on_without_one_that_was_killed_and_it_joins_them(started: Any, size: int, count: int) -> None:
    undisturbed = ends(started(size, count=count))[0]
    ranks = started(size, count=count)
    ranks.able()
    pids = {rank: process.pid for rank, process in ranks.processes.items()}
    for lost in (size - 1, 0):
        ranks.reached(ranks.step() + random.Random(lost).randrange(3, 8))
        ranks.kill(lost)
        ranks.formed()
        ranks.begin_to_join(lost)
        ranks.join(lost)
        ranks.formed()
    for state in ends(ranks):
        assert_same(state, undisturbed)
    kept = [rank for rank, process in ranks.processes.items() if process.pid == pids[rank]]
    assert kept == list(range(1, size - 1)) or size == 2


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_repeat_no_step_and_lose_no_sample(started: Any, seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice([3, 4])
    undisturbed = ends(started(size, count=size))[0]
    ranks = started(size, every=chance.choice([1, 7]))
    ranks.able()
    for _ in range(3):
        time.sleep(chance.uniform(0.0, 0.15))
        lost = chance.sample(range(size), chance.choice([1, 1, 2]))
        match chance.choice(["together", "while forming", "while joining"]) if len(lost) > 1 else "alone":
            case "while forming":
                ranks.kill(lost[0])
                time.sleep(chance.uniform(0.0, 0.05))
                ranks.kill(lost[1])
            case "while joining":
                ranks.kill(lost[0])
                ranks.begin_to_join(lost[0])
                ranks.join(lost[0])
                time.sleep(chance.uniform(0.0, 0.05))
                ranks.kill(lost[1])
            case _:
                ranks.kill(*lost)
        ranks.formed()
        absent = sorted(ranks.absent)
        ranks.begin_to_join(*absent)
        ranks.join(*absent)
        ranks.formed()  # before that, the ranks that are lost next may be the only ones with the state
    for state in ends(ranks):
        assert_same(state, undisturbed)


def test_ranks_that_save_after_each_step_do_so_together_after_one_has_joined(started: Any) -> None:
    undisturbed = ends(started(2))[0]
    ranks = started(2, every=1)
    ranks.able()
    ranks.kill(1)
    ranks.formed()
    ranks.begin_to_join(1)
    ranks.join(1)
    ranks.formed()
    for state in ends(ranks):
        assert_same(state, undisturbed)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("another optimizer", "several optimizers"),
        ("a closure", "is given a closure"),
        ("an average of weights", "average has large tensors"),
        ("no parts", "recovery.parts()"),
    ],
)
def test_a_script_that_cannot_continue_says_why(started: Any, kind: str, said: str) -> None:
    ranks = started(2, kind=kind)
    ranks.wait(lambda: said in ranks.progress(0).get("cannotContinue", ""))
    assert "continuing" not in ranks.progress(0)
    ranks.processes[1].kill()
    ranks.processes[0].join(30)
    assert ranks.processes[0].exitcode == 1, "a collective raises, as without any of this"
    assert "onnection" in ranks.output(0)
