"""Means over ranks of many tensors in one all-reduce."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist


def ring_bytes(numbers: int, size: int, element: int) -> int:
    """Bytes that a rank sends in a ring all-reduce of `numbers` elements of `element` bytes among `size` ranks."""
    return 2 * numbers * element * (size - 1) // size


def average(tensors: Iterable[torch.Tensor]) -> int:
    """Replace floating-point `tensors` by their mean over ranks, one all-reduce a type; the bytes sent."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            by_type.setdefault(tensor.dtype, []).append(tensor)
    sent = 0
    for group in by_type.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group]).div_(dist.get_world_size())
        dist.all_reduce(flat)
        sent += ring_bytes(flat.numel(), dist.get_world_size(), flat.element_size())
        for tensor, mean in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
            tensor.detach().copy_(mean.view_as(tensor))
    return sent
