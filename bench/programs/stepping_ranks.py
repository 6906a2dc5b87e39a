"""Ranks that write down when they had done each step: a hook for trainloop, and a plain DDP script.

The script is this file, run as one: a model of 0.8 MB and Adam, whose state `trainloop.recovery` keeps. `STEPS_FILE` is
one file of this machine for all ranks; a line is short enough to be written whole by O_APPEND.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

# A model of a few milliseconds a step would leave four ranks on two cores no time to breathe.
PAUSE = 0.03


def attempt() -> int:
    """Returns the attempt's number; without an agent it is that of torchrun's round of ranks."""
    return int(os.environ.get("TRAINMASTER_ATTEMPT") or 1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"]))


def write_down(step: int) -> None:
    """Writes down that this rank has done a step now."""
    line = f"{time.time():.4f} {attempt()} {os.environ['RANK']} {os.getpid()} {step}\n".encode()
    file = os.open(os.environ["STEPS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)


def hook(trainer: Trainer) -> None:
    """Has a trainer write down each step (`hooks: [bench.programs.stepping_ranks:hook]`)."""

    def stepped(trainer: Trainer) -> None:
        write_down(trainer.state.step)
        time.sleep(PAUSE)

    trainer.after_step.append(stepped)


def main() -> None:
    """Trains until it is ended, or the file `$STEPS_FILE.stop` is there."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from trainloop.recovery import Recovery

    if "WITHOUT_MEMORY" in os.environ:
        os.environ.pop("TRAINMASTER_MEMORY_DIR", None)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 128)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recovery = Recovery(model, optimizer, every=int(os.environ["CHECKPOINT_STEPS"]), rehearsal=True)
    print("joined", attempt(), rank, os.getpid(), time.time(), flush=True)
    for step in recovery.steps(1_000_000):
        points = torch.randn(64, 256, generator=torch.Generator().manual_seed(step * size + rank))
        loss = model(points).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recovery.report(loss=loss.item())
        write_down(step)
        time.sleep(float(os.environ.get("PAUSE", PAUSE)))
        stop = torch.tensor(float(Path(os.environ["STEPS_FILE"] + ".stop").exists()))
        dist.all_reduce(stop)
        if stop:
            break


if __name__ == "__main__":
    main()
