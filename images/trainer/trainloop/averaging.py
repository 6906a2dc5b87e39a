"""Local SGD: ranks step by themselves and average their weights every few steps (Stich 2019).

Between two averages ranks differ, so whatever looks at the model as one thing (evaluation, a checkpoint) averages
first; a checkpoint also averages the optimizer's moments, and ranks resume from equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from trainloop.compression import ring_bytes


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


def average_model(model: nn.Module) -> int:
    """Average parameters and buffers (running statistics) over ranks; the bytes sent."""
    return average([*model.parameters(), *model.buffers()])


def average_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Average the moments over ranks, in the model's order of parameters."""
    states = [optimizer.state[parameter] for parameter in model.parameters() if parameter in optimizer.state]
    tensors = [value for state in states for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
    average([tensor for tensor in tensors if tensor.dim() > 0])
