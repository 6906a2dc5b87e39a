"""The evaluation runs on all ranks and combines their measurements.

Each rank evaluates its part of every pass. Scalars are summed, and rows are concatenated in the data's order. So the
results are the same as those of a single process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import torch
from pydantic import Field
from torch import nn

from trainloop import seeding
from trainloop.data import is_stream
from trainloop.distributed.world import World
from trainloop.errors import TrainingError
from trainloop.loader import few, on_device
from trainloop.optimization.precision import Precision
from trainloop.settings import Settings
from trainloop.tasks import Task

T = TypeVar("T")
Loss = Callable[[Callable[..., Any], Any], torch.Tensor]


class EvaluationSettings(Settings):
    """These settings decide when the model is measured on the evaluation set."""

    every_steps: int | None = Field(None, gt=0, description="Steps between evaluations; null is only at the end.")
    batch: int = Field(256, gt=0, description="Samples in one forward pass of a rank.")
    samples: int | None = Field(None, gt=0, description="Use only the first so many samples; null all.")
    seconds: float = Field(1800, gt=0, description="How long an evaluation may take before it counts as a hang.")


class Evaluator:
    """The evaluator measures the current model; every rank gets the same numbers."""

    def __init__(
        self, settings: EvaluationSettings, task: Task, model: nn.Module, precision: Precision, world: World
    ) -> None:
        self.settings, self.task, self.model, self.precision, self.world = settings, task, model, precision, world
        # : The first samples of the training data. They are read now, before anything else reads a stream.
        self.few = few(task.train)

    def evaluate(self, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns the task's results over its evaluation set, or None if `stop` returns true on any rank.

        Raises TrainingError if the ranks' measurements can't be combined.
        """
        ranks = self.world.present[:: self.world.tensor]
        size, rank = len(ranks), ranks.index(self.world.data_rank * self.world.tensor)
        measured: dict[str, list[torch.Tensor]] = {}
        for block in self._blocks(self.settings.batch * size):
            if self.world.sum([float(stop())])[0] > 0:
                return None
            share = math.ceil(len(block) / size)
            mine = block[rank * share : (rank + 1) * share]
            # All ranks make the same number of passes, because FSDP's forward is collective. Extra passes don't count.
            for name, value in self._measure(self._samples(mine or block[:1])).items():
                counted = value if mine else value[:0] if value.ndim else torch.zeros_like(value)
                measured.setdefault(name, []).append(counted.cpu())
        # A rank's rows are sent together, after all passes. Ranks that share each layer have measured the same values.
        own = {name: _of_passes(values) for name, values in measured.items()}
        gathered = self.world.gather(own)
        totals = {name: _of_ranks(name, [gathered[rank].get(name) for rank in ranks]) for name in own}
        if not totals:
            raise TrainingError("the task's evaluation has no samples: give some, or set evaluation to None")
        return {"loss": totals["loss"] / max(1.0, totals["count"]), **self.task.results(totals)}

    def sample_loss(self) -> float:
        """Returns the mean loss of the first few training samples, which is used to verify a checkpoint."""
        loss, count = self._loss(self.task.loss, [self.few[index] for index in range(min(8, len(self.few)))])
        return loss / max(1.0, count)

    def is_a_mean(self, loss: Loss) -> bool:
        """Returns whether a loss seems to be a mean instead of a sum.

        If a sample is used twice, a mean doesn't change, although the count doubles. Two samples are tested, because a
        random loss may pass the test once by chance. The test doesn't find losses whose count is always one, or
        contrastive losses, which are zero for a single sample.
        """
        return all(self._is_same_twice(loss, self.few[index]) for index in range(min(2, len(self.few))))

    def _is_same_twice(self, loss: Loss, sample: Any) -> bool:
        (once, count), (twice, both) = (self._loss(loss, [sample] * times) for times in (1, 2))
        return once != 0 and both > count and math.isclose(once, twice, rel_tol=0.01)

    def _loss(self, loss: Loss, samples: list[Any]) -> tuple[float, float]:
        """Returns the loss summed over `samples`, and its number of terms. Random generators stay unchanged."""
        # In eager mode, the blocks aren't compiled for just a few samples, and then again for varying shapes.
        with seeding.drawing(self.world.device, 0), torch.compiler.set_stance("force_eager"):
            batch = on_device(self.task.collate(samples), self.world.device)
            return float(self._evaluating(lambda: loss(self.model, batch))), float(self.task.count(batch))

    def _blocks(self, size: int) -> Iterator[list[Any]]:
        """Yields, for each pass, the samples of all ranks in the data's order: indices, or a stream's samples."""
        data = self.task.evaluation
        all_of_it = islice(data if is_stream(data) else range(len(data)), self.settings.samples)
        while block := list(islice(all_of_it, size)):
            yield block

    def _samples(self, block: list[Any]) -> list[Any]:
        return block if is_stream(self.task.evaluation) else [self.task.evaluation[index] for index in block]

    def _measure(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        """Returns the loss summed over `samples`, its number of terms, and the task's measurements."""
        batch = on_device(self.task.collate(samples), self.world.device)
        task, model = self.task, self.model
        found = self._evaluating(lambda: {"loss": task.loss(model, batch), **task.measure(model, batch)})
        found["count"] = torch.tensor(task.count(batch))
        return {name: torch.as_tensor(value) for name, value in found.items()}

    def _evaluating(self, call: Callable[[], T]) -> T:
        """Calls `call` with the model in evaluation mode, restores each layer's mode, and returns the result."""
        trained = [module for module in self.model.modules() if module.training]
        self.model.eval()
        with torch.no_grad(), self.precision.autocast():
            found = call()
        for module in trained:
            module.training = True
        # FSDP2's root module stays gathered until a backward pass, so hooks would see full parameters instead of
        # shards.
        getattr(self.model, "reshard", lambda: None)()
        return found


def _of_passes(values: list[torch.Tensor]) -> Any:
    """Combines a rank's values from all passes: returns the sum of scalars, or the rows."""
    if not any(value.ndim for value in values):
        return sum(map(float, values))
    from trainloop import evaluation  # imported when used

    return evaluation.of_passes(values)


def _of_ranks(name: str, ranks: list[Any]) -> Any:
    """Combines all ranks' values: returns the sum, or the rows. Raises TrainingError if they can't be combined."""
    if all(isinstance(own, float) for own in ranks):
        return sum(ranks)
    from trainloop import evaluation

    return evaluation.of_ranks(name, ranks)


#: A rank's rows: the number of rows in each pass, and all rows together.
Rows = tuple[list[int], torch.Tensor]


def of_passes(values: list[torch.Tensor]) -> Rows | None:
    """Returns the rows of a rank's passes; None if one pass has a scalar and another one rows."""
    try:
        return [len(value) for value in values], torch.cat(values)
    except (TypeError, RuntimeError):
        return None


def of_ranks(name: str, ranks: Sequence[Any]) -> torch.Tensor:
    """Returns the rows of all ranks, pass by pass. Raises TrainingError if a rank has something other than rows."""
    try:
        passes = zip(*(torch.split(rows, lengths) for lengths, rows in cast("Sequence[Rows]", ranks)), strict=True)
        return torch.cat([part for parts in passes for part in parts])
    except (TypeError, ValueError, RuntimeError):
        raise TrainingError(
            f"the task's measure gives {name!r} in shapes that don't go together: it must be a scalar in every batch, "
            "or rows (samples first) in every batch, of a single sample too, which squeeze() would make a scalar"
        ) from None
