"""Defines a step's work, which is equal for all compared programs: `PARTS` micro-batches over all ranks.

`PAUSE` is how long a rank with its usual share sleeps in a step, as if it waited for a device, because four ranks that
only calculated would overload two cores. Extra micro-batches add to the pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

PARTS, SAMPLES = 12, 16
PAUSE = 0.03
WIDTH = 256
TURN_SECONDS = 0.005


def await_turn() -> None:
    """Waits before a step until `TURN_FILE`, if there is one, contains this program's `TURN`.

    Compared programs alternate, because a machine's speed changes within seconds.
    """
    if "TURN_FILE" in os.environ:
        file, own = Path(os.environ["TURN_FILE"]), os.environ["TURN"]
        while file.read_text() != own:
            time.sleep(TURN_SECONDS)


def network() -> nn.Module:
    """Returns a model of 0.8 MB with the same weights on every rank."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, 128))


def loss_of(model: nn.Module, step: int, part: int, size: int) -> torch.Tensor:
    """Returns a micro-batch's loss in a step that `size` ranks share."""
    import torch

    time.sleep(float(os.environ.get("PAUSE", PAUSE)) * size / PARTS)
    points = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(step * PARTS + part))
    # The loss is scaled by `size`, because DDP averages gradients over ranks.
    loss: torch.Tensor = model(points).pow(2).mean() * size / PARTS
    return loss


def own_parts(model: DistributedDataParallel, rank: int, size: int) -> Iterator[int]:
    """Yields a rank's micro-batches. Gradients are sent only in the last one."""
    mine = range(rank, PARTS, size)
    for part in mine:
        with nullcontext() if part == mine[-1] else model.no_sync():
            yield part
