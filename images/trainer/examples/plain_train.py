"""A script of one's own needs torch only: torchrun's environment, DDP, and one line that reports its progress.

It classifies points by whether they are inside a circle, saves a checkpoint it can go on from, and stops on SIGTERM.
"""

import json
import math
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "400"))
CHECKPOINT = pathlib.Path(os.environ.get("TRAINMASTER_CHECKPOINT_DIR", ".")) / "plain.pt"
SAVE_EVERY = 50


def heartbeat(step: int, loss: float) -> None:
    """Report progress: a file is written beside its final name and renamed (docs/protocol.md, Progress)."""
    if name := os.environ.get("TRAINMASTER_PROGRESS_FILE"):
        beside = pathlib.Path(f"{name}.{os.environ['RANK']}.tmp")
        beside.write_text(json.dumps({"step": step, "totalSteps": STEPS, "loss": loss}))
        beside.replace(f"{name}.{os.environ['RANK']}")


def main() -> int:
    stop_requested = False

    def request_stop(*_: object) -> None:
        nonlocal stop_requested
        stop_requested = True

    signal.signal(signal.SIGTERM, request_stop)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    # Rank 0 saves, so rank 0 loads and sends the others what it has: workers may have disks of their own. Tensors, and
    # no objects: those would travel as pickles, which run code where they are read.
    saved = torch.load(CHECKPOINT, weights_only=True) if rank == 0 and CHECKPOINT.is_file() else None
    if saved:
        network.load_state_dict(saved["model"])
    model = DistributedDataParallel(network)  # gives rank 0's weights to all
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    begin = torch.tensor(saved["step"] if saved else 0)
    dist.broadcast(begin, 0)
    first = int(begin)
    if first:
        if saved:
            optimizer.load_state_dict(saved["optimizer"])
        for parameter in model.parameters():
            state = optimizer.state[parameter]
            for moment in ("exp_avg", "exp_avg_sq"):
                dist.broadcast(state.setdefault(moment, torch.zeros_like(parameter)), 0)
            state["step"] = torch.tensor(float(first))
    for step in range(first + 1, STEPS + 1):
        generator = torch.Generator().manual_seed(step * size + rank)
        points = torch.rand(64, 2, generator=generator) * 2 - 1
        inside = (points.norm(dim=1) < math.sqrt(0.5)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        heartbeat(step, loss.item())
        stop = torch.tensor(int(stop_requested))
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if rank == 0 and (step % SAVE_EVERY == 0 or step == STEPS or stop):
            print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
            CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
            beside = CHECKPOINT.with_suffix(".tmp")
            torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
            beside.replace(CHECKPOINT)
        if stop:
            return 143
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without the interpreter's clean-up: gloo's threads still run then, and now and then it aborts (torch 2.13).
    os._exit(code)
