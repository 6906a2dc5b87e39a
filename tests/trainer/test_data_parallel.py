"""Training with several ranks takes the steps that one process takes, to 1e-12 (`trainer`, `parallel/strategies`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, toy, train
from trainloop.distributed.world import joined
from trainloop.optimization.optimizer import clip_gradients
from trainloop.parallel.compression import Compressor
from trainloop.parallel.sharded import local
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


WORDS = {"task": {"name": "tests.trainer.toy:Words", "options": {"samples": 21}}, "steps": 7}


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Returns the results of the same runs in one process."""
    return {
        name: run_ranks(1, train, config(**changes))[0] for name, changes in {"toy": UNEVEN, "words": WORDS}.items()
    }


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_take_the_steps_that_one_process_takes(alone: dict[str, dict[str, Any]], ranks: int) -> None:
    together = run_ranks(ranks, train, config(**UNEVEN))
    for rank in together:
        assert largest_difference(rank["weights"], alone["toy"]["weights"]) < 1e-12


@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulated_micro_batches_with_uneven_padding_equal_the_big_batch(
    alone: dict[str, dict[str, Any]], ranks: int
) -> None:
    """With three ranks and passes of at most two sequences, every micro-batch has a different number of tokens."""
    accumulated = run_ranks(ranks, train, config(**WORDS, batch={"size": 8, "per_rank": 2}))
    for rank in accumulated:
        assert largest_difference(rank["weights"], alone["words"]["weights"]) < 1e-12


def test_a_rank_without_samples_enters_the_collectives(alone: dict[str, dict[str, Any]]) -> None:
    """With 21 samples, an epoch's last step has 5 samples in batches of 8, and in batches of 10 only one for
    two ranks.
    """
    changes = {**WORDS, "batch": {"size": 10}, "steps": 6}
    one = run_ranks(1, train, config(**changes))[0]
    two = run_ranks(2, train, config(**changes))
    assert largest_difference(two[1]["weights"], one["weights"]) < 1e-12


def test_loader_processes_give_the_same_batches_as_reading_in_place(alone: dict[str, dict[str, Any]]) -> None:
    loaded = run_ranks(2, train, config(**UNEVEN, data={"workers": 2, "prefetch": 2}))
    assert largest_difference(loaded[0]["weights"], alone["toy"]["weights"]) < 1e-12


def test_the_step_is_bounded_by_the_clipped_norm() -> None:
    """With plain SGD the update is lr x gradient, so its norm is at most lr x max_norm, even if the gradient is
    large.
    """
    [(update, norm)] = run_ranks(1, _one_clipped_step)
    assert norm > 0.01
    assert update == pytest.approx(0.5 * 0.01, rel=1e-4)


def _one_clipped_step() -> tuple[float, float]:
    changes = {"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0, "weight_decay": 0, "max_norm": 0.01}}
    settings = config(**changes, schedule={"kind": "constant", "warmup": 0})
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        before = [parameter.detach().clone() for parameter in trainer.replica.model.parameters()]
        trainer.train_step()
        after = [parameter.detach() for parameter in trainer.replica.model.parameters()]
        update = torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)]).norm()
        loss = trainer.task.loss(trainer.replica.model, trainer.task.collate([trainer.task.train[0]]))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(update), float(clip_gradients(trainer.replica.model.parameters(), None))


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "fsdp")])
def test_without_a_max_norm_gradients_stay_as_they_are_however_large(ranks: int, strategy: str) -> None:
    """The squares of 1e30 overflow single precision, so the norm is infinite, and can't be a divisor."""
    assert run_ranks(ranks, _left_alone, strategy) == [(True, float("inf"))] * ranks


def _left_alone(strategy: str) -> tuple[bool, float]:
    settings = config(**toy(double=False), precision={"compute": "fp32"}, parallel={"strategy": strategy})
    with joined(settings.distributed) as world:
        parameters = list(Trainer(settings, world).replica.model.parameters())
        given = [torch.full_like(parameter, 1e30) for parameter in parameters]
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient.clone()
        norm = clip_gradients(parameters, None)
        return all(torch.equal(local(p.grad), local(g)) for p, g in zip(parameters, given, strict=True)), float(norm)


def test_sending_begins_before_all_gradients_are_there() -> None:
    """DDP's default first bucket is small; with a given size it would be as large as the others, which is everything
    here.
    """
    assert run_ranks(2, _buckets) == [2, 2]


def _buckets() -> int:
    """Returns how many buckets a step sends, for 16 layers of 0.25 MiB, once DDP has reordered them."""
    settings = config(**toy(double=False, hidden=256, depth=16), precision={"compute": "fp32"}, parallel={}, steps=3)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        trainer.train_step()
        reduced, reduce = list[bool](), Compressor.reduce

        def counted(compressor: Compressor, bucket: dist.GradBucket, *arguments: Any) -> Any:
            reduced.append(bucket.is_last())
            return reduce(compressor, bucket, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compressor, "reduce", counted)
            trainer.train_step()
        return len(reduced)
