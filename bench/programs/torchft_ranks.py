"""Trains with torchft. Each rank is a separate replica group, whose DDP and optimizer ask a manager.

It runs in a Python with torchft (`bench.peers.environments`). A step's group is torchft's quorum id.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from bench.programs.parts import PARTS, await_turn, loss_of, network, own_parts
from bench.programs.stepping_ranks import write_down


def main() -> None:
    """Trains until the process is killed."""
    import torch
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    net = network()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ["GLOO_SECONDS"]))),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        replica_id=f"rank_{rank}",
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
        heartbeat_interval=timedelta(milliseconds=int(os.environ["HEARTBEAT_MS"])),
        timeout=timedelta(seconds=30),
    )
    model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)
    while True:
        await_turn()
        # This asks for a quorum. Only a rank that comes back doesn't know the step's number before.
        optimizer.zero_grad()
        step = manager.current_step()
        for part in own_parts(model, rank, size):
            loss = loss_of(model, step, part, size)
            loss.backward()
            loss.item()
        optimizer.step()
        if manager.current_step() > step:
            # A rank that comes back receives the state in its first step, to which it contributes nothing.
            parts = PARTS // size if manager.is_participating() else 0
            write_down(manager.current_step(), manager._quorum_id, parts, PARTS)
