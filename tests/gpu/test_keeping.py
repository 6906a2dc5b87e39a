"""Keeping a state has a bounded cost, and works while the device is stuck; one process tests it on a real device."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainloop.recovery import sealed
from trainloop.recovery.agreement import Group, newest
from trainloop.recovery.keeper import Keeper, Kept
from trainloop.recovery.place import Place
from trainloop.recovery.slots import Buffers
from trainloop.recovery.tensors import OptimizerState

PLACE = Place("job", 1, 0, 1, 1)
#: The number of cycles of a kernel that runs for two to four seconds.
LONG = 4_000_000_000


class Run:
    """Runs a loop on the GPU whose state is kept in `/dev/shm`."""

    def __init__(self, directory: Path, width: int = 1024, layers: int = 4) -> None:
        self.said, self.step, self.directory = list[str](), 0, directory
        layered = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.BatchNorm1d(width))]
        self.model = nn.Sequential(*layered).cuda()
        self.model.register_buffer("mask", torch.ones(12, 1024, 1024, dtype=torch.bool, device="cuda"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.points = torch.randn(256, width, device="cuda")
        numbers = OptimizerState(self.optimizer, torch.device("cuda"))
        weights = dict(self.model.named_parameters())
        kept = Kept(
            host=lambda: {"optimizer": numbers.host(), "step": self.step},
            state=lambda host: {"model": weights, "optimizer": numbers.whole(host["optimizer"]), "step": host["step"]},
            buffers=Buffers(self.model),
            optimizers=[self.optimizer],
        )
        self.keeper = Keeper(PLACE, directory, torch.device("cuda", 0), kept, Group(PLACE), self.said.append)
        self.optimizer.register_step_pre_hook(lambda *_: self.keeper.changing())
        self.keeper.begin(0)

    def make_step(self, kernel: int = 0) -> None:
        loss = self.model(self.points).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if kernel:
            torch.cuda._sleep(kernel)  # type: ignore[no-untyped-call]  # as a collective that waits for a rank
        self.optimizer.step()
        self.step += 1
        self.keeper.finished(self.step)


@pytest.fixture
def directory() -> Any:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def found(directory: Path) -> Any:
    place = Place("job", 2, 0, 1, 1)
    return next(newest(place, Group(place), print, directory))


def test_a_state_is_kept_while_a_kernel_runs_and_queued_steps_change_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_SAVING_FILE", str(directory / "saving"))
    run = Run(directory)
    for _ in range(6):
        run.make_step()
    torch.cuda.synchronize()
    expected = {name: each.detach().cpu() for name, each in run.model.named_parameters()}
    run.make_step(LONG)
    began = time.monotonic()
    run.keeper.save()
    seconds = time.monotonic() - began
    assert seconds < 1.5, f"{seconds:.2f} s: the copy waited for the kernel"
    kept = found(directory)
    assert kept.step == 6 and kept.state()["step"] == 6, run.said
    for name, weight in expected.items():
        assert torch.equal(kept.state()["model"][name], weight)
    torch.cuda.synchronize()
    for name, weight in run.model.named_parameters():
        assert torch.equal(weight.detach().cpu(), expected[name]), "the queued step was made"


def test_an_ordinary_step_waits_for_nothing_and_copies_no_mask(directory: Path) -> None:
    run = Run(directory)
    for _ in range(12):
        run.make_step()
    run.keeper._snapshots._next = 1 << 60
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            run.make_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.keeper._slots is not None and "mask" in run.keeper._slots.constant(run.step)


def test_training_doesnt_stand_still_for_a_snapshot_and_memory_is_pinned(directory: Path) -> None:
    free = os.statvfs("/dev/shm")
    if free.f_bavail * free.f_frsize < 4 << 30:
        pytest.skip("/dev/shm has less than 4 GiB")
    run = Run(directory, width=4096, layers=8)  # 1.6 GB
    seconds = []
    for _ in range(40):
        began = time.monotonic()
        run.make_step()
        seconds.append(time.monotonic() - began)
    files = run.keeper._generations.files
    assert [file.unpinned for file in files] == [None, None] and not run.said
    inodes = {file.path.stat().st_ino for file in files}
    run.keeper._snapshots._next = run.step + 1
    snapshots = []
    for _ in range(20):
        began = time.monotonic()
        run.make_step()
        snapshots.append(time.monotonic() - began)
    run.keeper._snapshots.wait(10)
    ordinary = statistics.median(seconds[10:])
    assert snapshots[0] - ordinary < 0.05, f"{snapshots[0]:.3f} s, an ordinary step {ordinary:.3f} s"
    assert {file.path.stat().st_ino for file in files} == inodes
    assert max(seal.step for file in files if (seal := sealed.read_seal(file.path))) >= 41
