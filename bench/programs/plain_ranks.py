"""Trains with plain DDP without any fault tolerance, to show a healthy step's cost."""

from __future__ import annotations

from bench.programs.parts import PARTS, await_turn, loss_of, network, own_parts
from bench.programs.stepping_ranks import write_down


def main() -> None:
    """Trains until the process is killed."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 1_000_000):
        await_turn()
        for part in own_parts(model, rank, size):
            loss = loss_of(model, step, part, size)
            loss.backward()
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
        write_down(step, 1, PARTS // size, PARTS)
