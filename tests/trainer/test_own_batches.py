"""A task may provide its own batches, by a function of the epoch or as a torch BatchSampler (`data`)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import Toy, Words, config, largest_difference, train, weights
from trainloop.data import OwnBatches
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


class ByLength(Words):
    """Batches contain texts of similar length and at most 24 characters, in an order without a seed."""

    def batches(self, epoch: int) -> list[list[int]]:
        order = sorted(range(len(self.train)), key=lambda index: (len(self.train[index][1]), random.random()))
        batches: list[list[int]] = [[]]
        for index in order:
            if sum(len(self.train[other][1]) for other in [*batches[-1], index]) > 24:
                batches.append([])
            batches[-1].append(index)
        random.shuffle(batches)
        return batches[: len(batches) - epoch]


BY_LENGTH: dict[str, Any] = {"task": {"name": f"{__name__}:ByLength"}, "batch": {"size": 12, "per_rank": 3}}


def _steps(settings: Any) -> list[list[int]]:
    """Train in one rank; returns the samples of each step."""
    steps: list[list[int]] = []
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        seen = trainer.task.seen  # type: ignore[attr-defined]
        trainer.after_step.append(lambda _: steps.append(seen[sum(map(len, steps)) :]))
        trainer.run()
    return steps


def test_batches_of_ones_own_are_the_steps_and_their_epochs_may_differ_in_length() -> None:
    [steps] = run_ranks(1, _steps, config(**BY_LENGTH, steps=None, epochs=2))
    task = ByLength({})
    lengths = {index: len(text) for index, text in task.train}
    first = next(number for number in range(len(steps)) if sum(map(len, steps[:number])) == 40)
    assert sorted(sample for step in steps[:first] for sample in step) == list(range(40))
    assert len(steps) == 2 * first - 1, "the second epoch leaves a batch out"
    for step in steps:
        assert sum(lengths[index] for index in step) <= 24
        assert max(lengths[index] for index in step) - min(lengths[index] for index in step) <= 2
    assert steps[:first] != sorted(steps[:first], key=lambda step: lengths[step[0]]), "the order is drawn"


def test_steps_on_batches_of_ones_own_are_those_of_plain_torch_and_of_any_number_of_ranks() -> None:
    changes: dict[str, Any] = {**BY_LENGTH, "steps": 9, "schedule": {"kind": "constant", "warmup": 0}}
    changes["optimizer"] = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "max_norm": None}
    [steps] = run_ranks(1, _steps, config(**changes))
    ranks = run_ranks(4, train, config(**changes))
    task = ByLength({})
    [start] = run_ranks(1, _start, config(**changes))
    model = task.model().double()
    model.load_state_dict(start)
    for step in steps:
        texts = [task.train[index][1] for index in step]
        losses = [
            functional.cross_entropy(model(text[:-1].unsqueeze(0))[0], text[1:], reduction="sum") for text in texts
        ]
        loss = torch.stack(losses).sum() / sum(len(text) - 1 for text in texts)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    assert largest_difference(ranks[0]["weights"], dict(model.state_dict())) < 1e-12


def _start(settings: Any) -> dict[str, torch.Tensor]:
    """Returns the weights before the first step."""
    with joined(settings.distributed) as world:
        return weights(Trainer(settings, world))


class Sampled(Toy):
    """Has torch's own BatchSampler over a RandomSampler, with or without a generator."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        generator = torch.Generator() if options.get("generator") else None
        self.batch_sampler: Any = BatchSampler(RandomSampler(self.train, generator=generator), 6, drop_last=False)


class Distributed(Toy):
    """Makes a common mistake: each rank would get a part of the ranks' parts."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.batch_sampler = BatchSampler(DistributedSampler(range(20), num_replicas=2, rank=0), 6, drop_last=False)


@pytest.mark.parametrize("generator", [False, True])
def test_a_batch_sampler_is_the_same_on_all_ranks_and_resumed_with_others_in_mid_epoch(
    tmp_path: Path, generator: bool
) -> None:
    """An epoch has four batches of 6; four ranks continue in the second one."""
    task = {"name": f"{__name__}:Sampled", "options": {"samples": 24, "generator": generator}}
    changes: dict[str, Any] = {"task": task, "steps": None, "epochs": 2, "batch": {"size": 6}}
    through = run_ranks(1, train, config(**changes))[0]
    before = run_ranks(2, train, config(tmp_path, **changes), 5)
    after = run_ranks(4, train, config(tmp_path, **changes))
    assert largest_difference(after[0]["weights"], through["weights"]) < 1e-12
    # Two of the ranks have two samples of a batch of 6. A rank that continues first makes a pass over its own, the
    # rehearsal.
    shares = [2, 2, 1, 1]
    assert all(rank["seen"][:own] == rank["seen"][own : 2 * own] for own, rank in zip(shares, after, strict=True))
    seen = [*(rank["seen"] for rank in before), *(rank["seen"][own:] for own, rank in zip(shares, after, strict=True))]
    assert sorted(sample for samples in seen for sample in samples) == sorted([*range(24), *range(24)])
    assert through["seen"][:24] != through["seen"][24:], "each epoch has an order of its own"


def own_batches(task: Any) -> OwnBatches:
    return OwnBatches(len(task.train), 12, 3, SEED, False, task, torch.device("cpu"))


SEED = 5


class Weighted(Toy):
    """Draws its samples by weight, with torch's own samplers, or with others according to `kind`."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__({"samples": 23})
        kinds: dict[str, Any] = {
            "weighted": WeightedRandomSampler(range(1, 24), 23),
            "random": RandomSampler(self.train, num_samples=50, replacement=True),
            "some": SubsetRandomSampler(range(3, 20)),
            "in order": SequentialSampler(self.train),
            "changing": Changing(self.train),
        }
        self.batch_sampler: Any = BatchSampler(kinds[options["kind"]], 4, drop_last=options.get("drop_last", False))


class Changing(RandomSampler):
    """Has fewer samples in each epoch, and reports a length that was true once."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__())[8 * self.epoch :])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["weighted", "random", "some", "in order", "changing"])
def test_a_runs_length_is_that_of_the_batches_which_it_is_given(kind: str, drop_last: bool) -> None:
    given = own_batches(Weighted({"kind": kind, "drop_last": drop_last}))
    drawn = [len([*given.batches(epoch, 0)]) for epoch in range(2)]
    assert given.steps_in(1) == drawn[0]
    assert given.steps_in(1.5) == drawn[0] + math.ceil(drawn[1] / 2)
    assert given.steps_in(2) == sum(drawn)


def test_torchs_own_samplers_are_not_drawn_from_for_a_runs_length(monkeypatch: pytest.MonkeyPatch) -> None:
    given = own_batches(Weighted({"kind": "weighted"}))
    monkeypatch.setattr(WeightedRandomSampler, "__iter__", lambda _: pytest.fail("it is drawn from"))
    assert given.steps_in(10_000) == 6 * 10_000


class Counted(ByLength):
    """Reports which epochs it was asked for."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.asked: list[int] = []

    def batches(self, epoch: int) -> list[list[int]]:
        self.asked.append(epoch)
        return super().batches(epoch)


def test_the_first_epochs_batches_are_those_that_were_counted_and_are_then_let_go() -> None:
    task = Counted({})
    given, again = own_batches(task), own_batches(ByLength({}))
    steps = given.steps_in(2)
    assert task.asked == [0, 1]
    first, second = [*given.batches(0, 0)], [*given.batches(1, 0)]
    assert task.asked == [0, 1, 1]
    assert len(first) + len(second) == steps
    assert (first, second) == ([*again.batches(0, 0)], [*again.batches(1, 0)]), "as drawn without a count"
    assert [*given.batches(0, 0)] == first and task.asked[-1] == 0, "drawn anew, not kept for the whole run"


def test_a_run_that_goes_on_in_a_later_epoch_keeps_no_batches_of_the_first() -> None:
    task = Counted({})
    given, again = own_batches(task), own_batches(ByLength({}))
    given.steps_in(2)
    assert [*given.batches(1, 0)] == [*again.batches(1, 0)]
    assert [*given.batches(0, 0)] == [*again.batches(0, 0)]
    assert task.asked == [0, 1, 1, 0]


def test_batches_that_cannot_be_used_are_sentences() -> None:
    words = "ConfigError: the task gives a batch of 6 samples in epoch 0: it must have 1 to 4 "
    with pytest.raises(RankFailed, match=words):
        run_ranks(1, train, config(task={"name": f"{__name__}:Sampled"}, batch={"size": 4}))
    with pytest.raises(RankFailed, match="ConfigError: the task gives no batches in epoch 0"):
        run_ranks(1, train, config(task={"name": f"{__name__}:Nothing"}))
    with pytest.raises(RankFailed, match="batch_sampler has a DistributedSampler: give the global batches"):
        run_ranks(1, train, config(task={"name": f"{__name__}:Distributed"}))
    with pytest.raises(RankFailed, match="the task's batches are of indices, which its train, a stream, doesn't have"):
        run_ranks(1, train, config(task={"name": f"{__name__}:Streamed"}))


class Nothing(Toy):
    """Its epochs have no batches."""

    def batches(self, epoch: int) -> list[list[int]]:
        return []


class Streamed(Nothing):
    """Its data has no index."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.train = dict(enumerate(self.train)).values()  # type: ignore[assignment]
