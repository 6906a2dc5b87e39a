"""Evaluation over all ranks: each takes every n-th sample, the sums are added up, so the result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field

from trainloop.distributed import World
from trainloop.parallel import Replica
from trainloop.precision import Precision
from trainloop.settings import Settings
from trainloop.tasks import Task


class EvaluationSettings(Settings):
    """When the model is measured on the evaluation set."""

    every_steps: int | None = Field(
        None, gt=0, description="Steps between evaluations; null only at the end of the run."
    )
    batch: int = Field(256, gt=0, description="Samples in one forward pass of a rank.")
    samples: int | None = Field(None, gt=0, description="Use only the first so many samples; null all.")
    seconds: float = Field(1800, gt=0, description="How long an evaluation may take before it counts as a hang.")


def evaluate(
    settings: EvaluationSettings,
    task: Task,
    replica: Replica,
    world: World,
    precision: Precision,
    stop: Callable[[], bool],
) -> dict[str, float] | None:
    """The task's results over its evaluation set, the same numbers on every rank; None once any rank says `stop`."""
    data = task.evaluation or []
    length = min(len(data), settings.samples or len(data))
    mine = range(world.rank, length, world.size)
    totals: dict[str, float] = {}
    # As many passes on every rank, because FSDP's forward is collective; the spare ones don't count.
    for start in range(0, math.ceil(length / world.size), settings.batch):
        if world.sum([float(stop())])[0] > 0:
            return None
        samples = mine[start : start + settings.batch]
        sums = _sums(task, [data[sample] for sample in samples or range(1)], replica, world, precision)
        totals = {name: totals.get(name, 0.0) + (value if samples else 0.0) for name, value in sums.items()}
    totals = dict(zip(totals, world.sum(list(totals.values())), strict=True))
    return {"loss": totals["loss"] / max(1.0, totals["count"]), **task.results(totals)}


def sample_loss(task: Task, replica: Replica, world: World, precision: Precision, samples: int = 8) -> float:
    """Mean loss of the first few training samples, in evaluation mode: what a checkpoint is recognised by."""
    first = [task.train[index] for index in range(min(samples, len(task.train)))]
    sums = _sums(task, first, replica, world, precision)
    return sums["loss"] / max(1.0, sums["count"])


def _sums(task: Task, samples: list[Any], replica: Replica, world: World, precision: Precision) -> dict[str, float]:
    """Over `samples`: the loss, what it is a mean over, and what the task measures."""
    batch = {name: tensor.to(world.device) for name, tensor in task.collate(samples).items()}
    replica.model.eval()
    with torch.no_grad(), precision.autocast():
        sums = {"loss": task.loss(replica.model, batch), **task.measure(replica.model, batch)}
    replica.model.train()
    return {"count": float(task.count(batch)), **{name: float(value) for name, value in sums.items()}}
