"""A script whose device lags behind the host trains on when ranks are lost. The steps that the host has queued beyond
the device's last completed step are taken back and repeated (`recovery/keeper`, `steps`, `continuation`).

Each rank has a fake device (`fake_device`), whose collectives are gloo's. It waits in a collective until its group is
ended, and then works through its queue, as a GPU does with NCCL. The host is up to two steps ahead.
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

from tests.trainer.continued import assert_same, ends, starting
from tests.trainer.fake_device import FakeDevice
from trainloop.recovery import keeper

STEPS = 120


class Momentum(torch.optim.Optimizer):
    """Makes SGD steps with momentum, which are queued and can be left out, like those of torch's fused optimizers."""

    _step_supports_amp_scaling = True

    def __init__(self, device: FakeDevice, parameters: Any, *, holds: bool) -> None:
        super().__init__(parameters, {"lr": 0.05, "fused": holds})
        self.device, self.found_inf = device, None
        self._step_supports_amp_scaling = holds

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        flag = self.found_inf
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    moment = self.state[weight].setdefault("moment", torch.zeros_like(weight))
                    self.device.run(lambda w=weight, g=weight.grad, m=moment, r=group["lr"]: _change(w, g, m, r, flag))


@torch.no_grad()
def _change(weight: torch.Tensor, gradient: torch.Tensor, moment: torch.Tensor, rate: float, flag: Any) -> None:
    if flag is None or not flag:
        moment.mul_(0.9).add_(gradient)
        weight.sub_(moment, alpha=rate)


def script(folder: Path, settings: dict[str, Any]) -> None:
    from trainloop.recovery import Recovery

    device = FakeDevice()
    keeper.device_of = lambda _: device  # type: ignore[assignment]
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    devices = dist.new_group()  # its own, as NCCL's is: the device enters a collective when its queue gets there
    torch.manual_seed(0)
    model = nn.Linear(6, 1, bias=False)
    model.register_buffer("seen", torch.zeros(3))
    weight, seen = model.weight, model.get_buffer("seen")
    optimizer = Momentum(device, list(model.parameters()), holds=settings.get("holds", True))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.98)
    others = {"scheduler": scheduler} if settings.get("scheduler") else {}
    path = folder / "disk" if settings.get("every") else None
    recovery = Recovery(model, optimizer, every=settings.get("every", 1000), path=path, **others)
    for step in recovery.steps(STEPS):
        weight.grad = torch.zeros_like(weight)
        for part in recovery.parts():
            noise = torch.randn(8, 6)

            def pass_over(part: int = part, noise: torch.Tensor = noise, into: torch.Tensor = weight.grad) -> None:
                with torch.no_grad():
                    into.add_(noise.mean(0) * weight.tanh() + noise.sum() * 0.1 + part * 0.01)
                    time.sleep(0.003)

            device.run(pass_over)

        def reduce(into: torch.Tensor = weight.grad, step: int = step) -> None:
            seen.data.add_(step)
            dist.all_reduce(into, group=devices)

        device.run(reduce)
        torch.autograd.graph.increment_version(seen)  # as the host does when it queues a change
        if settings.get("reads"):
            device.synchronize()
        optimizer.step()
        if others:
            scheduler.step()
        if not (folder / "go").exists():  # until the test has done what it does
            time.sleep(0.0 if step < STEPS - 40 else 0.1)
    device.synchronize()
    end = {"weight": weight.detach(), "seen": seen, "rate": torch.tensor(optimizer.param_groups[0]["lr"])}
    torch.save(end, folder / f"end-{rank}")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    with starting(tmp_path, script) as start:
        yield start


@pytest.mark.parametrize("settings", [{}, {"scheduler": True}, {"reads": True}, {"scheduler": True, "every": 4}])
def test_what_was_queued_is_taken_back(started: Any, settings: dict[str, Any]) -> None:
    undisturbed = ends(started(3, **settings))[0]
    ranks = started(3, **settings)
    ranks.able()
    chance = random.Random(len(settings))
    for lost in (2, 0, 1):
        ranks.reached(ranks.step() + chance.randrange(3, 8))
        time.sleep(chance.uniform(0, 0.01))
        ranks.kill(lost)
        ranks.formed()
        ranks.begin_to_join(lost)
        ranks.join(lost)
        ranks.formed()
    for state in ends(ranks):
        assert_same(state, undisturbed)


def test_an_optimizer_that_cannot_leave_a_step_out_says_so(started: Any) -> None:
    ranks = started(2, holds=False)
    ranks.wait(lambda: "fused=True" in ranks.progress(0).get("cannotContinue", ""))
