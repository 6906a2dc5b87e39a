"""The order of the samples doesn't depend on the number of ranks (`data`)."""

from __future__ import annotations

import math
import os
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, Toy, config, same_bits, train
from trainloop.config import Config
from trainloop.data import DataSettings, Sampler, permutation
from trainloop.distributed.world import World, joined
from trainloop.loader import Loader, on_device
from trainloop.optimization.schedule import Schedule
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


def test_every_sample_is_seen_once_when_the_number_of_ranks_changes_in_mid_epoch(tmp_path: Path) -> None:
    """The learning rate also continues where it was."""
    changes: dict[str, Any] = {**UNEVEN, "epochs": 1, "steps": None, "batch": {"size": 4}}
    before = run_ranks(2, train, config(tmp_path, **changes), 2)
    after = run_ranks(4, train, config(tmp_path, **changes))
    # A rank that continues first makes a pass over its next sample (the rehearsal), which isn't training.
    assert all(rank["seen"][0] == rank["seen"][1] for rank in after)
    seen = [*(rank["seen"] for rank in before), *(rank["seen"][1:] for rank in after)]
    assert sorted(sample for samples in seen for sample in samples) == [*range(20)]
    schedule = Schedule(config(**changes).schedule, total=5, batch=4)
    assert before[0]["rates"] + after[0]["rates"] == [0.05 * schedule.factor(update) for update in range(5)]


def test_the_global_batch_of_the_first_start_is_kept_when_the_number_of_ranks_changes(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**UNEVEN, "batch": {"per_rank": 2, "accumulation": 2}}
    run_ranks(2, train, config(tmp_path, **changes), 2)
    assert run_ranks(1, train, config(tmp_path, **changes))[0]["state"].batch == 8


def test_a_checkpoint_of_before_that_has_a_position_alone_is_gone_on_from() -> None:
    """24 samples of 20 are an epoch and 4 samples; the next steps have 8 and 8, and then the third epoch begins."""
    task, world = Toy({"samples": 20}), World(0, 1, 0, 1, torch.device("cpu"), "gloo")
    loader = Loader(DataSettings(), task, Sampler(20, 8, 8, 5, False), world)
    assert loader.start(24, {}) == []
    fetched = [loader.fetch() for _ in range(3)]
    orders = [permutation(5, epoch, 20).tolist() for epoch in (1, 2)]
    assert [one.batches[0]["index"].tolist() for one in fetched] == [orders[0][4:12], orders[0][12:], orders[1][:8]]
    assert [one.step.position for one in fetched] == [32, 40, 48]
    assert [one.step.place for one in fetched] == [
        {"epoch": epoch, "done": done} for epoch, done in ((1, 12), (1, 20), (2, 8))
    ]


class ReadBy(Toy):
    """Each batch records which process has read it."""

    def collate(self, samples: list[Any]) -> Any:
        return {**super().collate(samples), "reader": os.getpid()}

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.readers = [*getattr(self, "readers", []), batch["reader"]]
            self.lengths = [*getattr(self, "lengths", []), len(batch["labels"])]
        return super().loss(model, batch)


def _with_other_shares(settings: Config) -> dict[str, Any]:
    """Train, with other shares after steps 2 and 10; returns each pass's samples, reader and length."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        shares = {2: [0.75, 0.25], 10: [0.25, 0.75]}

        def change(trainer: Trainer) -> None:
            trainer.loader.weights = shares.get(trainer.state.step, trainer.loader.weights)

        trainer.after_step.append(change)
        trainer.run()
        assert isinstance(trainer.task, ReadBy)
        return {"seen": trainer.task.seen, "readers": trainer.task.readers, "lengths": trainer.task.lengths}


def test_loader_processes_live_on_when_shares_change_and_when_a_run_goes_back(tmp_path: Path) -> None:
    """Steps 6 to 8 are odd, so the run goes back from 8 to 4. 16 steps and those 4, each of 8 samples of 40, are four
    epochs, in which no sample is left out or read twice. New shares apply once the samples read ahead are used.
    """
    workers, prefetch = 2, 1
    task = {"name": "tests.trainer.test_data_order:ReadBy", "options": {"poison": [6, 7, 8], "factor": math.nan}}
    changes: dict[str, Any] = {"task": task, "steps": 16, "batch": {"size": 8, "per_rank": 8}}
    changes["data"] = {"workers": workers, "prefetch": prefetch}
    changes["checkpoint"] = {"path": str(tmp_path / "checkpoints"), "every_steps": 4}
    ranks = run_ranks(2, _with_other_shares, config(tmp_path, **changes))
    assert "went back to step 4" in (tmp_path / "report" / "metrics.jsonl").read_text()
    assert [len(set(rank["readers"])) for rank in ranks] == [workers, workers]
    assert sorted(sample for rank in ranks for sample in rank["seen"]) == sorted(list(range(40)) * 4)
    # Steps 5 to 8 are made twice, on other data, so the change after step 10 comes after 14 passes.
    ahead = workers * prefetch
    lengths = [4] * (2 + ahead) + [6] * (14 - 2) + [2] * (20 - 14 - ahead)
    assert [rank["lengths"] for rank in ranks] == [lengths, [8 - length if length != 4 else 4 for length in lengths]]


class Words(NamedTuple):
    """Plays a part of a batch, as a library may give it."""

    text: list[str]
    points: torch.Tensor


@dataclass(frozen=True)
class Labels:
    """Plays another part."""

    labels: torch.Tensor
    names: tuple[str, ...]


class Movable:
    """Has a `to(device)`, as transformers' BatchEncoding does."""

    device: Any = None

    def to(self, device: torch.device) -> Movable:
        moved = Movable()
        moved.device = device
        return moved


def _nest(batch: dict[str, Any]) -> list[Any]:
    words = Words([f"number {index}" for index in batch["index"].tolist()], batch["points"])
    return [{"words": (words, None, 3)}, UserDict(index=batch["index"]), Labels(batch["labels"], ("a", "b"))]


class Nested(Toy):
    """Gives the toy task's batches as a list of a dict, a UserDict and a dataclass, which contain text and numbers."""

    def collate(self, samples: list[Any]) -> Any:
        return _nest(super().collate(samples))

    def count(self, batch: Any) -> int:
        return len(batch[2].labels)

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return super().loss(model, self._flat(batch))

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        return super().measure(model, self._flat(batch))

    def _flat(self, batch: Any) -> dict[str, torch.Tensor]:
        words, nothing, number = batch[0]["words"]
        assert nothing is None and number == 3
        assert words.text == [f"number {index}" for index in batch[1]["index"].tolist()]
        return {"index": batch[1]["index"], "points": words.points, "labels": batch[2].labels}


def test_nested_batches_train_as_flat_ones_do(tmp_path: Path) -> None:
    """They go through loader processes, evaluation, verification and resume."""
    nested = {"task": {"name": "tests.trainer.test_data_order:Nested"}, "data": {"workers": 1}}
    run_ranks(2, train, config(tmp_path, **nested), 3)
    resumed = run_ranks(2, train, config(tmp_path, **nested))[0]
    flat = run_ranks(2, train, config())[0]
    assert same_bits(resumed["weights"], flat["weights"]) and resumed["results"] == flat["results"]


def test_all_that_can_be_moved_to_a_device_is_moved_however_it_is_nested() -> None:
    indices = torch.arange(2)
    batch = _nest({"index": indices, "points": torch.ones(2, 3), "labels": indices})
    moved = on_device([*batch, OrderedDict(movable=Movable()), "text"], torch.device("meta"))
    assert moved[0]["words"][0].points.is_meta and moved[0]["words"][0].text == ["number 0", "number 1"]
    assert moved[0]["words"][1:] == (None, 3)
    assert isinstance(moved[1], UserDict) and moved[1]["index"].is_meta
    assert moved[2].labels.is_meta and moved[2].names == ("a", "b")
    assert isinstance(moved[3], OrderedDict) and moved[3]["movable"].device == torch.device("meta")
    assert moved[4] == "text"
    assert batch[1]["index"] is indices, "the batch itself stays as it was"
