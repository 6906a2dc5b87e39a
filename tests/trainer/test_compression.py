"""Compressed gradients send the bytes of theory, and what one step leaves out reaches the same parameter in later
steps.
"""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import CLASSES, FEATURES, Toy, config, largest_difference, toy, train
from trainloop.config import Config
from trainloop.distributed.world import World, joined
from trainloop.parallel.communication import CommunicationSettings, GradientExchange
from trainloop.parallel.compression import Memory
from trainloop.parallel.lossy import carried_over
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Bucket:
    """Has what the hook needs of a DDP bucket."""

    def __init__(self, *gradients: torch.Tensor) -> None:
        self._flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._parameters = gradients

    def buffer(self) -> torch.Tensor:
        return self._flat

    def is_last(self) -> bool:
        return True

    def parameters(self) -> list[torch.Tensor]:
        return list(self._parameters)

    def gradients(self) -> list[torch.Tensor]:
        parts = torch.split(self._flat, [parameter.numel() for parameter in self._parameters])
        return [part.view(like.shape) for part, like in zip(parts, self._parameters, strict=True)]


def _reduced(exchange: GradientExchange, gradients: list[torch.Tensor]) -> torch.Tensor:
    exchange.names.update((gradient, str(index)) for index, gradient in enumerate(gradients))
    exchange.begin(0)
    bucket: Any = Bucket(*gradients)
    return bucket.buffer().copy_(exchange.reduce(bucket).wait()).clone()  # type: ignore[no-any-return]


def _compressed(method: str) -> tuple[float, float, int]:
    """Returns the relative error of one step and of the sum of sixty, for one gradient; and the bytes sent per step."""
    with joined(config().distributed) as world:
        generator = torch.Generator().manual_seed(world.rank)
        own = [torch.randn(64, 32, generator=generator), torch.randn(32, generator=generator)]
        true = _reduced(GradientExchange(CommunicationSettings(), CPU), own)
        exchange = GradientExchange(CommunicationSettings.model_validate({"compression": method}), CPU)
        steps = [_reduced(exchange, own) for _ in range(60)]
        mean = torch.stack(steps).mean(0)
        return float((steps[0] - true).norm() / true.norm()), float((mean - true).norm() / true.norm()), exchange.sent


@pytest.mark.parametrize(
    ("method", "once", "in_the_mean"),
    [("none", 1e-6, 1e-6), ("fp16", 1e-3, 1e-3), ("bf16", 1e-2, 1e-2), ("onebit", 2.0, 0.2), ("powersgd", 1.0, 0.2)],
)
def test_what_compression_leaves_out_comes_with_later_steps(method: str, once: float, in_the_mean: float) -> None:
    """By error feedback, the mean of many compressed steps comes near the true gradient, however coarse one step is."""
    numbers, size = 64 * 32 + 32, 3
    for first, mean, sent in run_ranks(size, _compressed, method):
        assert first < once
        assert mean < in_the_mean
        assert sent == pytest.approx(_theory(method, numbers, size), rel=0.05)


def _theory(method: str, numbers: int, size: int) -> float:
    """Returns the bytes that a rank sends, by the table in trainloop.parallel.compression."""
    ring = 2 * (size - 1) / size
    return {
        "none": ring * 4 * numbers,
        "fp16": ring * 2 * numbers,
        "bf16": ring * 2 * numbers,
        "onebit": ring * numbers / 8 + (size - 1) * 8,
        "powersgd": ring * 4 * (4 * (64 + 32) + 32),
    }[method]


@pytest.mark.parametrize(("method", "ranks", "steps"), [("onebit", 2, 1), ("onebit", 3, 3), ("powersgd", 3, 1)])
def test_compressed_ranks_stay_equal_and_resume_to_the_bit(tmp_path: Path, method: str, ranks: int, steps: int) -> None:
    """This holds after the first step too, where the uninterrupted run continues with different buckets."""
    changes: dict[str, Any] = {
        "task": {"name": "tests.trainer.toy:Toy", "options": {"hidden": 32, "depth": 3, "double": False}},
        "precision": {"compute": "fp32"},
        "parallel": {"bucket_mb": 0.004},
        "communication": {"compression": method},
        "anomaly": {"enabled": False},
    }
    through = run_ranks(ranks, train, config(**changes))
    assert largest_difference(through[0]["weights"], through[1]["weights"]) == 0
    run_ranks(ranks, train, config(tmp_path, **changes), steps)
    resumed = run_ranks(ranks, train, config(tmp_path, **changes))
    assert largest_difference(resumed[1]["weights"], through[0]["weights"]) == 0


@pytest.mark.parametrize("method", ["fp16", "bf16"])
def test_a_scaled_gradient_that_overflows_on_the_wire_is_left_out_by_all_ranks(method: str) -> None:
    """The scale is lowered until the scaled gradient fits into what is sent."""
    sections: dict[str, Any] = {
        "precision": {"compute": "fp16", "initial_scale": 2.0**24},
        "task": {"name": "tests.trainer.toy:Toy", "options": {"double": False}},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0, "max_norm": None},
        "schedule": {"kind": "constant", "warmup": 0},
        "steps": 20,
    }
    compressed = run_ranks(2, train, config(**sections, communication={"compression": method}))
    plain = run_ranks(2, train, config(**sections))
    assert largest_difference(compressed[0]["weights"], compressed[1]["weights"]) == 0
    assert 0 < compressed[0]["state"].updates == compressed[1]["state"].updates < 20
    assert plain[0]["state"].updates >= compressed[0]["state"].updates


def test_memory_is_carried_over_to_another_number_of_ranks() -> None:
    """The remainder of the mean gradient is the mean of the ranks' own remainders, plus the sum of what each rank left
    out of the means that it sent.
    """
    memories = [
        {"a.left": torch.tensor([1.0, 3.0]), "a.mean_left": torch.tensor([0.0, 5.0]), "a.factor": torch.tensor([7.0])},
        {"a.left": torch.tensor([3.0, 5.0]), "a.factor": torch.tensor([7.0])},
    ]
    carried = carried_over(memories)
    assert {key: tensor.tolist() for key, tensor in carried.items()} == {"a.left": [2.0, 9.0], "a.factor": [7.0]}


class Ledger:
    """Adds up, per parameter, the true mean gradients and what the optimizer was given in their place.

    The truth is computed beside the loop: from a copy of the weights before the step, on the same batches, by autograd
    and one all-reduce.
    """

    def __init__(self, trainer: Trainer, world: World) -> None:
        self._trainer, self._world = trainer, world
        self.model = trainer.replica.model
        self.balance = {name: torch.zeros_like(parameter) for name, parameter in self.model.named_parameters()}
        self._fetched: Any = None
        fetch = trainer.loader.fetch

        def fetched() -> Any:
            self._fetched = fetch()
            return self._fetched

        trainer.loader.fetch = fetched  # type: ignore[method-assign]
        trainer.optimizer.register_step_pre_hook(self._sent)

    def _sent(self, *_: Any) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.balance[name] -= parameter.grad

    def step(self) -> float:
        """Make a step of the loop; returns the largest difference between what should be held back and what is."""
        twin, updates = copy.deepcopy(self.model), self._trainer.state.updates
        self._trainer.train_step()
        if self._trainer.state.updates > updates:
            self._true(twin)
        return self.violation()

    def _true(self, twin: nn.Module) -> None:
        task: Any = self._trainer.task
        batches = self._fetched.batches[: len(self._fetched.batches) - self._fetched.step.padding]
        [count] = self._world.sum([float(sum(task.count(batch) for batch in batches))])
        calls, task.calls = task.calls, task.calls - len(self._fetched.batches)
        parameters = dict(twin.named_parameters())
        for batch in batches:
            gradients = torch.autograd.grad(task.loss(twin, batch) / count, [*parameters.values()], allow_unused=True)
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        for name, parameter in parameters.items():
            total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if self._world.size > 1:
                dist.all_reduce(total)
            self.balance[name] += total
        task.calls = calls

    def violation(self) -> float:
        held = carried_over(self._world.gather(dict(self._trainer.exchange.memory)))
        pairs = [(balance, held.get(f"{name}.left", torch.zeros(()))) for name, balance in self.balance.items()]
        return max(float((balance - left).abs().max()) for balance, left in pairs)


#: Several buckets, the first of a different size, which DDP reorders after the first backward.
SEVERAL: dict[str, Any] = {
    "task": {"name": "tests.trainer.toy:Toy", "options": {"hidden": 40, "depth": 6}},
    "parallel": {"bucket_mb": 0.008},
    "anomaly": {"enabled": False},
    "optimizer": {"lr": 0.05, "max_norm": None},
    "steps": 20,
}


class Forked(nn.Module):
    """Has a branch that not every step, or not every rank, uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch, self.head = nn.Linear(FEATURES, 40), nn.Linear(40, 40), nn.Linear(40, CLASSES)

    def forward(self, points: torch.Tensor, branch: bool) -> torch.Tensor:
        hidden = self.trunk(points).tanh()
        out: torch.Tensor = self.head(self.branch(hidden) if branch else hidden)
        return out


class Sometimes(Toy):
    """All ranks use the branch, then none, then only rank 0, then all again, and so on."""

    def model(self) -> nn.Module:
        return Forked()

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        branch = (True, False, os.environ["RANK"] == "0")[self.calls % 3]
        self.calls += torch.is_grad_enabled()
        logits = model(batch["points"], branch or not torch.is_grad_enabled())
        return nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {}

    def results(self, sums: Any) -> dict[str, float]:
        return {}


def _violations(settings: Config, steps: int, balance: Memory | None = None) -> tuple[list[float], Memory]:
    """Returns the violation after each step, and the balance at the end, when a checkpoint is saved."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        ledger = Ledger(trainer, world)
        # Copies, because tensors among a rank's arguments are in memory that all ranks share.
        ledger.balance = copy.deepcopy(balance) or ledger.balance
        violations = [ledger.step() for _ in range(steps)]
        trainer.save()
        return violations, ledger.balance


@pytest.mark.parametrize("method", ["onebit", "powersgd"])
@pytest.mark.parametrize(("ranks", "start_step"), [(3, 0), (2, 2)])
def test_what_is_held_is_what_was_not_sent_from_the_first_step_on(method: str, ranks: int, start_step: int) -> None:
    """For each parameter, sum(true mean gradients) - sum(sent) = held back, although its bucket changes after
    step 1.
    """
    communication = {"compression": method, "powersgd_rank": 2, "start_step": start_step}
    for violations, balance in run_ranks(ranks, _violations, config(**SEVERAL, communication=communication), 5):
        assert max(violations) < 1e-12
        assert max(float(kept.abs().max()) for kept in balance.values()) > 1e-4


LEFT_OUT = {"anomaly": {"enabled": True}, **toy(hidden=40, depth=6, poison=[3], poisoned_rank=1, factor=math.nan)}
SOMETIMES: dict[str, Any] = {
    "task": {"name": "tests.trainer.test_compression:Sometimes"},
    "parallel": {"bucket_mb": 0.008, "find_unused_parameters": True},
    "gradients": {"ghosts": "off"},
}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("onebit", LEFT_OUT),
        ("powersgd", LEFT_OUT),
        ("onebit", SOMETIMES),
        ("powersgd", SOMETIMES),
        ("onebit", {"batch": {"size": 12, "per_rank": 2}}),
        ("onebit", {"balance": {"enabled": True, "warmup": 1, "every": 2, "tolerance": 0}}),
        ("powersgd", {"parallel": {"bucket_mb": 0.008, "strategy": "zero1"}}),
    ],
    ids=["a step left out", "with powersgd", "a branch", "with powersgd", "accumulation", "other shares", "zero1"],
)
def test_what_is_held_is_what_was_not_sent(method: str, changes: dict[str, Any]) -> None:
    """A step that is left out takes only its own remainder along; what DDP drops of an unused parameter isn't lost."""
    settings = config(**{**SEVERAL, "communication": {"compression": method, "powersgd_rank": 2}, **changes})
    for violations, _ in run_ranks(2, _violations, settings, 7):
        assert max(violations) < 1e-12


@pytest.mark.parametrize(
    ("ranks", "then", "bucket_mb"),
    [
        ((2, "onebit"), (4, "onebit"), 0.008),
        ((2, "onebit"), (2, "onebit"), 0.02),
        ((2, "powersgd"), (4, "onebit"), 0.008),
        ((2, "onebit"), (2, "none"), 0.008),
        ((2, "onebit"), (1, "onebit"), 0.008),
    ],
)
def test_nothing_that_is_held_is_lost_in_a_resume(
    tmp_path: Path, ranks: tuple[int, str], then: tuple[int, str], bucket_mb: float
) -> None:
    """The resumed run has another number of ranks, other bucket sizes, or another compression."""
    (first, method), (second, other) = ranks, then
    sections = {**SEVERAL, "communication": {"compression": method, "powersgd_rank": 2}}
    [(_, balance), *_] = run_ranks(first, _violations, config(tmp_path, **sections), 3)
    sections |= {"communication": {"compression": other, "powersgd_rank": 2}, "parallel": {"bucket_mb": bucket_mb}}
    for violations, _ in run_ranks(second, _violations, config(tmp_path, **sections), 3, balance):
        assert max(violations) < 1e-12


def _rolled_back(settings: Config) -> tuple[int, list[float]]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        ledger = Ledger(trainer, world)
        for _ in range(2):
            ledger.step()
        trainer.save()
        saved = {name: balance.clone() for name, balance in ledger.balance.items()}
        for _ in range(4):  # one that is made, three that are odd
            ledger.step()
        step = trainer.state.step
        ledger.balance = saved
        return step, [ledger.violation(), ledger.step()]


def test_a_return_to_a_checkpoint_brings_back_what_was_held(tmp_path: Path) -> None:
    changes = {**SEVERAL, **toy(hidden=40, depth=6, poison=[4, 5, 6], factor=math.nan), "anomaly": {"enabled": True}}
    checkpoint = {"path": str(tmp_path / "checkpoints"), "every_steps": 1000, "mode": "sync"}
    settings = config(**{**changes, "checkpoint": checkpoint, "communication": {"compression": "onebit"}})
    for step, violations in run_ranks(2, _rolled_back, settings):
        assert step == 2
        assert max(violations) < 1e-12


def test_what_an_older_version_kept_by_bucket_is_dropped_and_never_given_to_a_parameter() -> None:
    old = {"0.sent": torch.ones(8), "0.averaged": torch.ones(8), "0.0.error": torch.ones(8), "0.0.start": torch.ones(8)}
    new = {"0.left": torch.ones(8)}
    for memories, kept in (([old], {}), ([old, old], {}), ([new], {"0.left": [1] * 8})):
        exchange = GradientExchange(CommunicationSettings(), CPU)
        exchange.names.update({torch.zeros(8): "0", torch.zeros(8, 1): "0.0"})
        assert exchange.load(memories, 0) == (not kept)
        assert {key: tensor.tolist() for key, tensor in exchange.memory.items()} == kept


def _resumed_from_an_older_one(settings: Config) -> tuple[list[str], Memory]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        trainer.train_step()
        trainer.exchange.memory["0.sent"] = torch.ones(8)
        trainer.save()
        assert trainer.checkpoints is not None
        trainer.checkpoints.close()
        resumed, said = Trainer(settings, world), []
        resumed.log.info = said.append  # type: ignore[method-assign]
        resumed.prepare()
        return said, resumed.exchange.memory


def test_a_resume_says_that_what_an_older_version_kept_is_dropped(tmp_path: Path) -> None:
    [(said, memory)] = run_ranks(1, _resumed_from_an_older_one, config(tmp_path))
    assert any("has remainders of compression that fit no parameter: they are dropped" in line for line in said)
    assert memory == {}
