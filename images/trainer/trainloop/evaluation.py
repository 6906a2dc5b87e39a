"""The evaluation runs on all ranks: each has every n-th sample, the sums are added up, so the result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import nn

from trainloop.data import on_device
from trainloop.distributed.world import World
from trainloop.optimization.precision import Precision
from trainloop.settings import Settings
from trainloop.tasks import Task


class EvaluationSettings(Settings):
    """These settings say when the model is measured on the evaluation set."""

    every_steps: int | None = Field(None, gt=0, description="Steps between evaluations; null is only at the end.")
    batch: int = Field(256, gt=0, description="Samples in one forward pass of a rank.")
    samples: int | None = Field(None, gt=0, description="Use only the first so many samples; null all.")
    seconds: float = Field(1800, gt=0, description="How long an evaluation may take before it counts as a hang.")


class Evaluator:
    """Measures the model as it is; every rank gets the same numbers."""

    def __init__(
        self, settings: EvaluationSettings, task: Task, model: nn.Module, precision: Precision, world: World
    ) -> None:
        self.settings, self.task, self.model, self.precision, self.world = settings, task, model, precision, world

    def evaluate(self, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns the task's results over its evaluation set; None once `stop` is true on any rank."""
        data = self.task.evaluation or []
        length = min(len(data), self.settings.samples or len(data))
        mine = range(self.world.rank, length, self.world.size)
        totals: dict[str, float] = {}
        # As many passes on every rank, because FSDP's forward is collective; the spare ones don't count.
        for start in range(0, math.ceil(length / self.world.size), self.settings.batch):
            if self.world.sum([float(stop())])[0] > 0:
                return None
            samples = mine[start : start + self.settings.batch]
            sums = self._sums([data[sample] for sample in samples or range(1)])
            totals = {name: totals.get(name, 0.0) + (value if samples else 0.0) for name, value in sums.items()}
        totals = dict(zip(totals, self.world.sum(list(totals.values())), strict=True))
        return {"loss": totals["loss"] / max(1.0, totals["count"]), **self.task.results(totals)}

    def sample_loss(self) -> float:
        """Returns the mean loss of the first few training samples, by which a checkpoint is verified."""
        sums = self._sums([self.task.train[index] for index in range(min(8, len(self.task.train)))])
        return sums["loss"] / max(1.0, sums["count"])

    def loss_is_a_mean(self) -> bool:
        """Returns whether a sample has the same loss twice as once: a mistake in a task, whose loss must be a sum."""
        once, twice = (self._sums([self.task.train[0]] * times)["loss"] for times in (1, 2))
        return once != 0 and math.isclose(once, twice, rel_tol=0.01)

    def _sums(self, samples: list[Any]) -> dict[str, float]:
        """Returns sums over `samples`: the loss, what it is a mean over, and what the task measures."""
        batch = on_device(self.task.collate(samples), self.world.device)
        self.model.eval()
        with torch.no_grad(), self.precision.autocast():
            sums = {"loss": self.task.loss(self.model, batch), **self.task.measure(self.model, batch)}
        self.model.train()
        return {"count": float(self.task.count(batch)), **{name: float(value) for name, value in sums.items()}}
