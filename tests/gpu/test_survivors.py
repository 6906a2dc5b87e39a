"""Under NCCL a survivor keeps its state: its peer is killed, its device waits forever, and the agent sends SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer import test_memory_huggingface
from tests.trainer.faults import FAULTS, Fault, attempt, began, said, sealed, train
from tests.trainer.test_memory_resume import NORMED
from tests.trainer.toy import config
from trainloop.config import Config

STEPS, FAULT = 60, 40


def on_the_gpu() -> None:
    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # As under an agent, which ends a rank after a fault.
    os.environ["TRAINMASTER_SAVING_FILE"] = os.environ["TRAINMASTER_MEMORY_DIR"] + "/saving"
    torch.cuda.set_device(0)
    # Wait until the device has made all earlier steps, so that the last one is known.
    FAULTS.update(kill=lambda: _after_the_device(_killed), sleep=lambda: _after_the_device(_asleep))


def _after_the_device(fault: Callable[[], None]) -> None:
    torch.cuda.synchronize()
    print("the fault", flush=True)
    fault()


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _asleep() -> None:
    time.sleep(600)


def script(settings: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    from trainloop.recovery import Recovery

    on_the_gpu()
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.Tanh(), nn.Linear(512, 512)).cuda()
    model: nn.Module = network
    if settings.get("sharded"):
        from torch.distributed.fsdp import fully_shard

        fully_shard(network)
    else:
        model = DistributedDataParallel(network, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    recovery = Recovery(model, optimizer)
    seen = []
    for step in recovery.steps(STEPS):
        seen.append(step)
        if fault and step == fault[1] + 1:
            FAULTS[fault[0]]()
        points = torch.randn(64, 512, generator=torch.Generator().manual_seed(step * size + rank)).cuda()
        loss = (model(points) - points * 0.5).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if settings.get("item"):
            recovery.report(loss=loss.item())
    torch.cuda.synchronize()
    whole = {
        name: each.full_tensor() if hasattr(each, "full_tensor") else each
        for name, each in network.state_dict().items()
    }
    found = {"weights": {name: each.detach().cpu() for name, each in whole.items()}, "seen": seen}
    dist.barrier()
    return found


def trainloop(settings: Config, fault: Fault | None) -> dict[str, Any]:
    on_the_gpu()
    found = train(settings, fault)
    return found | {"weights": {name: each.cpu() for name, each in found["weights"].items()}}


def huggingface(settings: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    on_the_gpu()
    found = test_memory_huggingface.run(settings, fault)
    return found | {"weights": {name: each.cpu() for name, each in found["weights"].items()}}


def as_the_agent_does(memory: Path, writers: int = 1) -> Callable[[list[int]], None]:
    """Returns a function that waits for the fault, informs the remaining ranks, and waits until they have written."""

    def agent(ranks: list[int]) -> None:
        until = time.monotonic() + 90
        while "the fault" not in said(memory) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        living = [rank for rank in ranks if _lives(rank)]
        for rank in living:
            os.kill(rank, signal.SIGTERM)
        until = time.monotonic() + 10
        while said(memory).count("kept in memory") < writers and time.monotonic() < until:
            time.sleep(0.02)

    return agent


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Losing or repeating a step moves weights by a thousandth; the order of sums by a millionth."""
    for name, weight in one["weights"].items():
        torch.testing.assert_close(weight, other["weights"][name], rtol=1e-4, atol=1e-5)


def continues_here(
    memory: Path, settings: dict[str, Any], fault: str, *, local_ranks: int = 1, writers: int = 1
) -> int:
    """Meet a fault on rank 1, and continue from the remaining state; returns the first step that is made then. The
    result is compared with an uninterrupted run.
    """
    through = attempt(1, 2, memory.with_name("through"), settings, None, script, local_ranks=local_ranks)
    agent = as_the_agent_does(memory, writers)
    attempt(1, 2, memory, settings, {1: (fault, FAULT)}, script, local_ranks=local_ranks, meanwhile=agent)
    if local_ranks == 1:
        assert sealed(memory) == [f"1-{FAULT}-0-of-1.sealed"], said(memory)
    resumed = attempt(2, 2, memory, settings, None, script, local_ranks=local_ranks)
    assert_close(resumed[0], through[0])
    [first] = {each["seen"][0] for each in resumed}
    return int(first)


@pytest.mark.parametrize("item", [True, False])
def test_a_survivor_of_ddp_keeps_the_last_step(tmp_path: Path, item: bool) -> None:
    assert continues_here(tmp_path / "memory", {"item": item}, "kill") == FAULT + 1


def test_parts_of_fsdp_are_kept_when_a_rank_hangs(tmp_path: Path) -> None:
    settings = {"sharded": True, "item": True}
    assert continues_here(tmp_path / "memory", settings, "sleep", local_ranks=2, writers=2) == FAULT + 1


def test_a_run_of_fsdp_goes_on_from_its_snapshot_after_a_kill(tmp_path: Path) -> None:
    settings = {"sharded": True, "item": True}
    assert 1 < continues_here(tmp_path / "memory", settings, "kill", local_ranks=2) <= FAULT + 1


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_a_run_of_the_loop_goes_on(tmp_path: Path, strategy: str) -> None:
    """With parts, both ranks have the snapshot of the fourth step."""
    settings = config(None, **{**NORMED, "parallel": {"strategy": strategy}, "distributed": {"backend": "nccl"}})
    through = attempt(1, 2, tmp_path / "through", settings, None, trainloop, local_ranks=2, LOCAL_RANK="0")
    memory = tmp_path / "memory"
    agent = as_the_agent_does(memory)
    faults = {1: ("kill", 6)}
    attempt(1, 2, memory, settings, faults, trainloop, local_ranks=2, meanwhile=agent, LOCAL_RANK="0")
    resumed = attempt(2, 2, memory, settings, None, trainloop, local_ranks=2, LOCAL_RANK="0")
    assert began(resumed) == [6 if strategy == "ddp" else 4] * 2, said(memory)
    assert_close(resumed[0], through[0])


def test_hugging_faces_trainer_goes_on(tmp_path: Path) -> None:
    settings = {"gpu": True}
    memory = tmp_path / "memory"
    through = attempt(1, 2, tmp_path / "through", settings, None, huggingface, LOCAL_RANK="0")
    agent = as_the_agent_does(memory)
    attempt(1, 2, memory, settings, {1: ("kill", 3)}, huggingface, meanwhile=agent, LOCAL_RANK="0")
    resumed = attempt(2, 2, memory, settings, None, huggingface, LOCAL_RANK="0")
    assert [each["from"] for each in resumed] == ["checkpoint-3"] * 2, said(memory)
    assert_close(resumed[0], through[0])
