"""Tensors are averaged over all ranks, for what isn't DDP's: local SGD, groups that wait, compression."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from trainloop.distributed.world import ring_bytes


def average(tensors: Iterable[torch.Tensor]) -> int:
    """Replace floating-point `tensors` by their mean over ranks, in one all-reduce; returns the bytes sent."""
    floats = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or not dist.is_initialized():
        return 0
    flat = torch.cat([tensor.reshape(-1) for tensor in floats]).div_(dist.get_world_size())
    dist.all_reduce(flat)
    for tensor, mean in zip(floats, torch.split(flat, [tensor.numel() for tensor in floats]), strict=True):
        tensor.copy_(mean.view_as(tensor))
    return ring_bytes(flat.numel(), dist.get_world_size(), flat.element_size())
