"""A script of one's own needs torch only: torchrun's environment, DDP, and the four lines with `recovery`.

It classifies points by whether they are inside a circle. By those lines its ranks train on when others are lost, go on
from the step that they have in memory, or from the last one on the disk, report their progress, and stop on SIGTERM
with their state saved.
"""

import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.recovery import Recovery

STEPS = int(os.environ.get("STEPS", "400"))
SAVE_EVERY = 50


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(network)  # gives rank 0's weights to all
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recovery = Recovery(model, optimizer, every=SAVE_EVERY, rehearsal=True)
    for step in recovery.steps(STEPS):
        for part in recovery.parts():
            generator = torch.Generator().manual_seed(step * size + part)
            points = torch.rand(64, 2, generator=generator) * 2 - 1
            inside = (points.norm(dim=1) < math.sqrt(0.5)).float()
            loss = nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recovery.report(loss=loss.item())
        if rank == 0 and (step % SAVE_EVERY == 0 or step == STEPS):
            print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    code: object = 0
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
    sys.stdout.flush()
    # Without the interpreter's clean-up: gloo's threads still run then, and now and then it aborts (torch 2.13).
    os._exit(code if isinstance(code, int) else 1)
