"""The bytes that a rank says it sends are those of theory, and those of the collectives that torch is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import CLASSES, FEATURES, Toy, config
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

WIDTH, LAYERS = 8, 3


class Stacked(nn.Module):
    """Has three blocks, which FSDP2 gathers one by one, and a root with the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x).tanh()
        out: torch.Tensor = self.last(x)
        return out


class Stack(Toy):
    """Classifies by the stack."""

    def model(self) -> nn.Module:
        return Stacked()


class Counting(TorchDispatchMode):
    """Adds up the bytes that a rank sends in the collectives on weights and gradients (as rings), from torch's
    arguments.

    The loop's own messages (counts, losses, norms) are a few numbers each, or bytes.
    """

    def __init__(self, size: int, replicas: int = 1) -> None:
        super().__init__()
        self.size, self.sent = size // replicas, 0.0
        self.reduce = replicas if replicas > 1 else size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        times = {
            "c10d::allreduce_": 2 * (self.reduce - 1) / self.reduce,
            "c10d::broadcast_": (self.size - 1) / self.size,  # a rank is the source of one in `size`
            "c10d::_allgather_base_": (self.size - 1) / self.size,
            "c10d::_reduce_scatter_base_": self.size - 1,
        }
        name = func._schema.name
        if name in times:
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            weights = [tensor for tensor in tensors if tensor.dtype == torch.float32 and tensor.numel() > 2]
            self.sent += times[name] * sum(tensor.nbytes for tensor in weights)
        else:
            assert not name.startswith("c10d::") or "gather" in name or "barrier" in name, name
        return func(*args, **kwargs or {})


def _counted(settings: Config, steps: int) -> list[tuple[int, float]]:
    """Returns for each step the bytes that the loop reports, and those that were counted.

    An evaluation gathers weights as well, which belong to no step.
    """
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        numbers = []
        for _ in range(steps):
            with Counting(world.size, trainer.world.replicas) as counting:
                trainer.train_step()
            numbers.append((trainer.exchange.times.sent, counting.sent))
        trainer.evaluate()
        assert trainer.exchange.times.sent == numbers[-1][0]
        return numbers


def _theory(section: dict[str, Any], ranks: int, passes: int) -> list[float]:
    """Returns the theoretical bytes of four steps. FSDP2 pads a parameter to rows for each rank of a replica."""
    replicas = section["parallel"].get("data", [1])[0]
    ranks //= replicas
    layer = [(WIDTH, WIDTH), (WIDTH,)]
    root = [(WIDTH, FEATURES), (WIDTH,), (CLASSES, WIDTH), (CLASSES,)]
    plain = sum(torch.Size(shape).numel() for shape in root + layer * LAYERS)
    in_fsdp = [4 * sum(-(-rows // ranks) * ranks * (WIDTH if more else 1) for rows, *more in layer) * LAYERS]
    in_fsdp += [4 * sum(-(-rows // ranks) * ranks * (more[0] if more else 1) for rows, *more in root)]
    ring = (ranks - 1) / ranks
    if section["parallel"]["strategy"] == "fsdp":
        # Blocks are gathered in each forward and again in its backward, the root once; gradients are scattered once.
        between = 2 * (replicas - 1) / replicas * sum(in_fsdp) / ranks
        return [ring * (in_fsdp[0] * (2 * passes + 1) + in_fsdp[1] * (passes + 1)) + between] * 4
    if section["parallel"]["strategy"] == "zero1":
        return [ring * 4 * plain * 3] * 4
    if "communication" in section:
        return [0, ring * 4 * plain * 2] * 2
    late = sum(torch.Size(shape).numel() for shape in layer * LAYERS)
    return [ring * 8 * (plain - late), ring * 8 * plain] * 2


FSDP = {"parallel": {"strategy": "fsdp"}}
REPLICAS = {"parallel": {"strategy": "fsdp", "data": [2, 2]}}
ZERO1 = {"parallel": {"strategy": "zero1"}}
LOCAL = {"parallel": {"strategy": "ddp"}, "communication": {"local_steps": 2}}
DELAYED = {"parallel": {"strategy": "ddp"}, "delayed": {"pattern": "layers", "every": 2}}


@pytest.mark.parametrize(
    ("section", "ranks", "passes"),
    [
        *((FSDP, 2, 1), (FSDP, 4, 1), (FSDP, 2, 2), (REPLICAS, 4, 1), (REPLICAS, 4, 2)),
        *((ZERO1, 2, 2), (ZERO1, 4, 1), (LOCAL, 4, 1), (DELAYED, 4, 1)),
    ],
)
def test_each_strategy_reports_what_it_sends(section: dict[str, Any], ranks: int, passes: int) -> None:
    task = {"name": "tests.trainer.test_bytes_sent:Stack", "options": {"double": False, "samples": 64}}
    batch = {"size": 16, "per_rank": 16 // (ranks * passes)}
    sections = {"precision": {"compute": "fp32"}, **section}
    settings = config(task=task, batch=batch, **sections)
    theory = _theory(section, ranks, passes)
    for numbers in run_ranks(ranks, _counted, settings, 4):
        reported, counted = zip(*numbers, strict=True)
        assert reported == pytest.approx(counted, abs=1)
        # FSDP2's first step begins with what the loss check has gathered, and looks for ghosts.
        assert list(reported[1:]) == pytest.approx(theory[1:], abs=1)
