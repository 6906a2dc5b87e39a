"""A task provides model, data and loss; the loop does the rest.

A built-in task is set by its name (`reviews`), and a user's task by `module:factory`, where `factory(options)` returns
a Task. The loop never reads a batch itself. The task collates samples, counts the units of the mean loss, and returns
the loss as a *sum* over those units, because only sums can be added over micro-batches and ranks. `reviews` and `text`
are built in and need no network. `hub` is built in too, and uses models of the transformers library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from pydantic import Field, ValidationError
from torch import nn

from trainloop.data import Batch, is_stream
from trainloop.errors import ConfigError
from trainloop.loader import few
from trainloop.settings import Settings


class TaskSettings(Settings):
    """These settings choose the task and its own options."""

    name: str = Field("reviews", description="A built-in task, or `module:factory` of your own.")
    options: dict[str, Any] = Field({}, description="What the task itself takes; see the tasks below.")


@runtime_checkable
class Task(Protocol):
    """A task defines model, data and loss. The tensors that its methods receive are on the rank's device.

    A task may also define these members:

    - `optimizer(model, settings) -> torch.optim.Optimizer`: the task's optimizer, or several in a list, configured by
      the section `optimizer`. The schedule multiplies each group's own rate.
    - `objectives(model, settings) -> list[Objective]`: several losses, each with its optimizer, that are minimised by
      turns in each step (`objectives`).
    - `parallel_plan(model, ranks) -> dict[str, ParallelStyle]`: how `parallel.tensor` ranks share its layers, by
      module names (`layers.*.out`), in the styles of `torch.distributed.tensor.parallel`.
    - `batches(epoch) -> Sequence[Sequence[int]]`: the epoch's global batches as indices of `train`, of `batch.size`
      samples at most (by length, say), or `batch_sampler`: a torch BatchSampler for the same purpose.
    """

    train: Any  # with a length and an index, or iterable; sent to loader processes, so it must be picklable
    evaluation: Any  # likewise, or None

    def model(self) -> nn.Module:
        """Returns a fresh model on the CPU; the generators are seeded the same on every rank."""
        ...

    def collate(self, samples: list[Any]) -> Batch:
        """Returns samples as one batch: any nesting of dicts, lists, tuples and dataclasses.

        The batch may contain tensors and other values. Everything with a `to(device)` is moved to the rank's device.
        """
        ...

    def count(self, batch: Batch) -> int:
        """Returns the number of units over which the loss is averaged: samples, or tokens without padding."""
        ...

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        """Returns the loss *summed* over `count(batch)` units, as a scalar."""
        ...

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        """Returns the measurements, by name, from which `results` computes the results.

        Scalars are summed over the evaluation set. Tensors with rows (one per sample, or any number) are concatenated.
        The loop adds `loss` and `count`.
        """
        ...

    def results(self, measured: Mapping[str, Any], /) -> dict[str, float]:
        """Returns evaluation results (accuracy, AUC) from the whole evaluation set.

        Sums are floats; the rows of all ranks are in the data's order, on the CPU.
        """
        ...


#: The factories of built-in tasks, by name. They are imported only when used, because each has its own requirements.
BUILT_IN: dict[str, str] = {
    "reviews": "trainloop.tasks.reviews:Reviews",
    "text": "trainloop.tasks.text:Text",
    "causal-lm": "trainloop.tasks.hub:CausalLanguageModel",
    "sentence-pairs": "trainloop.tasks.hub:SentencePairs",
}


def task_module(settings: TaskSettings) -> str:
    """Returns the name of the task's module."""
    return BUILT_IN.get(settings.name, settings.name).partition(":")[0]


def build_task(settings: TaskSettings) -> Task:
    """Returns the task that `settings` name. Raises ConfigError for a wrong name or wrong options."""
    if settings.name not in BUILT_IN and ":" not in settings.name:
        raise ConfigError(
            f"task.name is {settings.name!r}: known are {', '.join(sorted(BUILT_IN))}, and your own as module:factory"
        )
    factory = imported("task.name", BUILT_IN.get(settings.name, settings.name))
    task = factory(_options(factory, settings.options))
    if not isinstance(task, Task):
        missing = [attribute for attribute in _TASK_ATTRIBUTES if not hasattr(task, attribute)]
        raise ConfigError(
            f"task.name is {settings.name!r}: what it returns has no {', '.join(missing)} (see docs/training.md)"
        )
    if problem := _unusable(task):
        raise ConfigError(f"task.name is {settings.name!r}: {problem}")
    return task


def _unusable(task: Task) -> str | None:
    """Returns the problem with the data's first sample, or None. Otherwise an error would occur deep in the loop."""
    for name, data in (("train", task.train), ("evaluation", [] if task.evaluation is None else task.evaluation)):
        kind = f"its {name} is of {type(data).__name__}"
        if is_stream(data) and (isinstance(data, Iterator) or not hasattr(data, "__iter__")):
            return (
                f"{kind}, which can't be read twice: give data with len() and [index], or a new start for each iter()"
            )
        if not is_stream(data) and not hasattr(data, "__len__"):
            return f"{kind}, which has [index] and no len(): add len()"
    first = few(task.train)
    if not len(first):
        return "its train has no samples"
    if task.collate([first[0]]) is None:
        return "its collate returns nothing: it must return the batch that count, loss and measure are given"
    return None


def imported(field: str, target: str) -> Any:
    """Returns the object named by `target` (`module:name`), the value of the configuration's `field`.

    Raises ConfigError if there is no such object.
    """
    module, _, name = target.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{field} is {target!r}: {error}; is it on PYTHONPATH in the image?") from error
    if not hasattr(found, name):
        raise ConfigError(f"{field} is {target!r}: module {module} has no {name!r}")
    return getattr(found, name)


_TASK_ATTRIBUTES = ("train", "evaluation", "model", "collate", "count", "loss", "measure", "results")


def _options(factory: Any, options: dict[str, Any]) -> Any:
    """Returns the options. If the factory has `Options` settings, the options are checked by them."""
    kind = getattr(factory, "Options", None)
    if kind is None:
        return options
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        from trainloop.settings import sentences

        raise ConfigError("\n".join(sentences(error, kind, "task.options"))) from error
