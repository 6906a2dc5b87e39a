"""Trains a plain script on a GPU, and records each step when the device has finished it. On a CPU it uses gloo.

The environment sets the model's size (`LAYERS` of `WIDTH`, 12 bytes a parameter with AdamW's moments) and a step's
samples (`BATCH`). With `ITEM` each step reads its loss. Without it the host is ahead of the device, so a thread waits
for each step's event. Two ranks can share a GPU, because to NCCL each appears to be on a separate host.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.programs.stepping_ranks import write_down

if TYPE_CHECKING:
    import torch
    from torch import nn

# Seconds of a pause in each step on a CPU, without which steps would be too short for two cores.
CPU_PAUSE = 0.03


def tower(layers: int, width: int, device: torch.device) -> nn.Module:
    """Returns a tower of linear layers."""
    from torch import nn

    modules = [each for _ in range(layers) for each in (nn.Linear(width, width, device=device), nn.Tanh())]
    return nn.Sequential(*modules)


class Done:
    """Done records steps when the device has finished them."""

    def __init__(self) -> None:
        self._queued: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True, name="steps").start()

    def queued(self, step: int) -> None:
        """Records a step once the device has finished all work queued so far."""
        import torch

        # A thread that waits for a blocking event sleeps.
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._queued.put((step, event))

    def _write(self) -> None:
        while True:
            step, event = self._queued.get()
            event.synchronize()
            write_down(step)


def main() -> None:
    """Trains until the process is killed."""
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from trainloop.recovery import Recovery

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    on_gpu, rank, size = device.type == "cuda", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    item, width = "ITEM" in os.environ, int(os.environ["WIDTH"])
    if on_gpu:
        torch.cuda.set_device(device)
    if size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    model = tower(int(os.environ["LAYERS"]), width, device)
    wrapped = DistributedDataParallel(model, device_ids=[0] if on_gpu else None) if size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    recovery = Recovery(wrapped, optimizer)
    done = None if item or not on_gpu else Done()
    generator, batch = torch.Generator(device), int(os.environ["BATCH"])
    for step in recovery.steps(1_000_000):
        generator.manual_seed(step * size + rank)
        points = torch.randn(batch, width, generator=generator, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            loss = (wrapped(points).float() - points).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if item:
            recovery.report(loss=loss.item())
        if done is not None:
            done.queued(step)
        else:
            write_down(step)
        if not on_gpu:
            time.sleep(CPU_PAUSE)


if __name__ == "__main__":
    main()
