"""Evaluation over all ranks: each takes every n-th sample, the sums are added up, so the result is exact."""

from __future__ import annotations

import math

import torch
from pydantic import Field

from trainloop.data import SizedDataset
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
    settings: EvaluationSettings, task: Task, data: SizedDataset, replica: Replica, world: World, precision: Precision
) -> dict[str, float]:
    """The task's results over the evaluation set; the same numbers on every rank."""
    length = min(len(data), settings.samples or len(data))
    mine = range(world.rank, length, world.size)
    # The same number on every rank, because FSDP's forward is collective.
    passes = math.ceil(math.ceil(length / world.size) / settings.batch)
    sums: dict[str, torch.Tensor] = {}
    replica.model.eval()
    with torch.no_grad():
        for index in range(passes):
            samples = mine[index * settings.batch : (index + 1) * settings.batch]
            batch = {
                name: tensor.to(world.device)
                for name, tensor in task.collate([data[sample] for sample in samples or range(1)]).items()
            }
            with precision.autocast():
                parts = {"loss": task.loss(replica.model, batch), **task.measure(replica.model, batch)}
            parts["count"] = torch.tensor(task.count(batch))
            for name, value in parts.items():
                weight = 1.0 if len(samples) else 0.0
                sums[name] = (
                    sums.get(name, torch.zeros((), dtype=torch.float64)) + weight * value.detach().double().cpu()
                )
    replica.model.train()
    totals = dict(zip(sums, world.sum([float(value) for value in sums.values()]), strict=True))
    return {"loss": totals["loss"] / max(1.0, totals["count"]), **task.results(totals)}


def sample_loss(task: Task, replica: Replica, world: World, precision: Precision, samples: int = 8) -> float:
    """Mean loss of the first few training samples, in evaluation mode: what a checkpoint is recognised by."""
    count = min(samples, len(task.train))
    batch = {
        name: tensor.to(world.device) for name, tensor in task.collate([task.train[i] for i in range(count)]).items()
    }
    replica.model.eval()
    with torch.no_grad(), precision.autocast():
        loss = float(task.loss(replica.model, batch)) / max(1, task.count(batch))
    replica.model.train()
    return loss
