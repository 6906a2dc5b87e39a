"""Tensor parallelism: neighbouring ranks share each layer (Shoeybi et al. 2019), with torch's own parallel styles.

The task says by `parallel_plan` how its model's layers are cut; a layer that the plan doesn't name is whole on every
rank. What a rank has of a layer FSDP2 then shards over the ranks that have the same part of it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from trainloop.errors import ConfigError, listed
from trainloop.parallel.sharded import by_mesh


def share_layers(model: nn.Module, plan: Callable[[nn.Module, int], dict[str, Any]] | None, mesh: DeviceMesh) -> None:
    """Cut the model's layers over the ranks of `mesh`, in place. Raises ConfigError for an impossible plan."""
    if plan is None:
        raise ConfigError(
            f"parallel.tensor is {mesh.size()}, but the task has no parallel_plan(model, ranks), which says how its "
            "model's layers are cut: add one (docs/training.md), or set it to 1"
        )
    styles = plan(model, mesh.size())
    names = [name for name, _ in model.named_modules() if name]
    if unknown := [pattern for pattern in styles if not fnmatch.filter(names, pattern)]:
        raise ConfigError(f"the task's parallel_plan names {listed(unknown)}, and its model has {listed(names)}")
    # Every rank has the same whole layer, or none yet, so nothing is sent.
    parallelize_module(model, mesh, styles, src_data_rank=None)


def split_groups(optimizer: torch.optim.Optimizer) -> None:
    """Split the optimizer's groups, so that each has parameters of one mesh: torch steps a group in one operation."""
    groups = optimizer.param_groups
    split = [{**group, "params": parameters} for group in groups for parameters in by_mesh(group["params"])]
    groups[:] = split
