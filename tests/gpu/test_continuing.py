"""Under NCCL, ranks train on in their processes when one is killed, and it joins them again: a script, and the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.gpu.test_survivors import assert_close
from tests.trainer.continued import Ranks
from tests.trainer.continued_runs import Fault, Run, train
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from tests.trainer.toy import train as train_alone
from trainloop.config import Config

STEPS = 300


def _on_the_gpu() -> None:
    import os

    # Two ranks may share a GPU if NCCL takes them for ranks of two machines.
    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(0)


def script(folder: Path) -> None:
    from trainloop.recovery import Recovery

    _on_the_gpu()
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).cuda()
    model = DistributedDataParallel(network, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    recovery = Recovery(model, optimizer)
    for step in recovery.steps(STEPS):
        for part in recovery.parts():
            points = torch.randn(64, 512, generator=torch.Generator().manual_seed(step * 100 + part)).cuda()
            (model(points) - points * 0.5).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.save({"weights": {name: each.cpu() for name, each in network.state_dict().items()}}, folder / f"end-{rank}")


def _ends(ranks: Ranks) -> list[dict[str, Any]]:
    ranks.ended()
    return [torch.load(ranks.folder / f"end-{rank}") for rank in range(ranks.size)]


def test_a_script_continues_without_a_rank_that_was_killed_and_takes_it_back(tmp_path: Path) -> None:
    folders = [tmp_path / "undisturbed", tmp_path / "disturbed"]
    for folder in folders:
        folder.mkdir()
    undisturbed = _ends(Ranks(folders[0], 2, script, folders[0]))
    ranks = Ranks(folders[1], 2, script, folders[1])
    try:
        ranks.able()
        pid = ranks.processes[0].pid
        ranks.reached(20)
        ranks.kill(1)
        ranks.formed()
        ranks.begin_to_join(1)
        ranks.join(1)
        ranks.formed()
        disturbed = _ends(ranks)
    finally:
        ranks.stop()
    assert ranks.processes[0].pid == pid
    for each in disturbed:
        assert_close(each, undisturbed[0])


def trainloop(settings: Config, folder: Path, fault: Fault | None) -> dict[str, Any]:
    _on_the_gpu()
    found = train(settings, folder, fault)
    return found | {"weights": {name: each.cpu() for name, each in found["weights"].items()}}


def test_the_loop_continues_without_a_rank_that_was_killed_and_takes_it_back(tmp_path: Path) -> None:
    same = {"steps": 20, "precision": {"compute": "fp32"}}
    settings = config(None, distributed={"backend": "nccl"}, **same)
    [undisturbed] = run_ranks(1, train_alone, config(None, **same))
    run = Run(tmp_path / "run", settings, 2, {(1, 0): ("forward", 6)}, function=trainloop)
    results = run.go()
    assert [absent for _, absent in run.orders] == [[1], []], run.said()
    weights = {name: each.cpu() for name, each in undisturbed["weights"].items()}
    for each in results:
        assert_close(each, {"weights": weights})
