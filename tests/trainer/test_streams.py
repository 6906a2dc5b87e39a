"""Data without an index trains like indexed data; every rank reads it once, and a resume continues at its place
(`streams`).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, UNEVEN, Toy, config, largest_difference, same_bits, train
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


class Plain(IterableDataset[Any]):
    """Yields the samples one after the other, in a different order each epoch."""

    def __init__(self, samples: list[Any], options: dict[str, Any]) -> None:
        self.samples, self.options, self.epoch = samples, options, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[int]:
        return [(7 * index + self.epoch) % len(self.samples) for index in range(len(self.samples))]

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is None or worker.num_workers == 1
        order = self.order()
        if self.options.get("shuffle"):
            random.shuffle(order)
        if self.options.get("differs") and os.environ["RANK"] == "1":
            order.reverse()
        for number, index in enumerate(order[: self.options.get("ends")]):
            if number == self.options.get("raises"):
                raise ValueError("a line that can't be read")
            yield self.samples[index]


class Stateful(Plain):
    """Knows its own place, as torchdata's datasets do, and so continues without reading finished samples again."""

    place = 0
    read = 0

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while self.place < len(order):
            self.place += 1
            self.read += 1
            yield self.samples[order[self.place - 1]]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Pathlike(Stateful):
    """Its state contains something that a checkpoint can't be read with."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "file": Path("data")}


class Streamed(Toy):
    """Trains the toy task with its training data as a stream; `options` choose what is wrong with it."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        kind = {False: Plain, True: Stateful, "path": Pathlike}[options.get("stateful", False)]
        self.train = kind(self.train, options)  # type: ignore[assignment]


class Listed(Toy):
    """Has the same samples in the same order, by index."""

    def batches(self, epoch: int) -> list[list[int]]:
        order = [(7 * index + epoch) % len(self.train) for index in range(len(self.train))]
        return [order[start : start + 8] for start in range(0, len(order), 8)]


def streamed(**options: Any) -> dict[str, Any]:
    return {"task": {"name": "tests.trainer.test_streams:Streamed", "options": options}}


def _log(path: Path) -> str:
    return (path / "report" / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("ranks", "workers"), [(2, 1), (3, 0)])
def test_steps_are_those_of_the_same_samples_by_index_at_any_number_of_ranks(ranks: int, workers: int) -> None:
    """With 20 samples an epoch has batches of 8, 8 and 4; each epoch has a different order."""
    [expected] = run_ranks(1, train, config(**{**UNEVEN, "task": {**UNEVEN["task"], "name": f"{__name__}:Listed"}}))
    runs = run_ranks(ranks, train, config(**{**UNEVEN, **streamed(samples=20)}, data={"workers": workers}))
    assert largest_difference(runs[0]["weights"], expected["weights"]) < 1e-12
    assert sorted(sample for run in runs for sample in run["seen"]) == sorted(expected["seen"])
    assert runs[0]["state"].place["epoch"] == 2 and runs[0]["state"].position == 48


@pytest.mark.parametrize(("stateful", "workers"), [(False, 0), (True, 1)])
def test_a_resumed_run_on_a_stream_equals_an_uninterrupted_one_to_the_bit(
    tmp_path: Path, stateful: bool, workers: int
) -> None:
    """The run has two epochs of 40 samples, and is ended in the middle of each."""
    options = {**EXACT["task"]["options"], "stateful": stateful}
    changes = {**EXACT, **streamed(**options), "steps": 10, "data": {"workers": workers}}
    through = run_ranks(2, train, config(**changes))[0]["weights"]
    run_ranks(2, train, config(tmp_path, **changes), 3)
    run_ranks(2, train, config(tmp_path, **changes), 4)
    resumed = run_ranks(2, train, config(tmp_path, **changes))
    assert same_bits(resumed[0]["weights"], through) and same_bits(resumed[1]["weights"], through)
    again = "the stream has no state_dict: its 16 samples that are done are read again"
    assert (again in _log(tmp_path)) is not stateful


def test_every_sample_of_a_stream_is_seen_once_when_the_number_of_ranks_changes_in_mid_epoch(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**streamed(samples=20), "steps": 5, "batch": {"size": 4}}
    before = run_ranks(2, train, config(tmp_path, **changes), 2)
    after = run_ranks(4, train, config(tmp_path, **changes))
    # A rank that continues first makes a pass over its next sample, the rehearsal.
    seen = [*(rank["seen"] for rank in before), *(rank["seen"][1:] for rank in after)]
    assert sorted(sample for samples in seen for sample in samples) == [*range(20)]


def test_a_shuffle_without_a_seed_is_the_same_on_all_ranks_and_after_a_resume_where_a_process_reads(
    tmp_path: Path,
) -> None:
    """In the training process the shuffle draws from the rank's own generators, and the loop reports that."""
    changes = {**streamed(samples=20, shuffle=True), "steps": 5, "batch": {"size": 4}}
    own = {**changes, "data": {"workers": 3}}
    before = run_ranks(2, train, config(tmp_path, **own), 2)
    after = run_ranks(2, train, config(tmp_path, **own))
    assert all(rank["seen"][:2] == rank["seen"][2:4] for rank in after)  # the rehearsal, and the step
    seen = [*(rank["seen"] for rank in before), *(rank["seen"][2:] for rank in after)]
    assert sorted(sample for samples in seen for sample in samples) == [*range(20)]
    assert "don't see the same stream" not in _log(tmp_path)
    run_ranks(2, train, config(tmp_path / "here", **changes))
    assert "ranks don't see the same stream" in _log(tmp_path / "here")


def test_ranks_that_see_different_streams_are_warned(tmp_path: Path) -> None:
    run_ranks(2, train, config(tmp_path, **streamed(differs=True)))
    lines = [json.loads(line) for line in _log(tmp_path).splitlines()]
    warnings = [line["text"] for line in lines if line.get("event") == "warning"]
    assert warnings == ["ranks don't see the same stream: each must read all of it in the same order"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_raises_is_named_with_the_place(workers: int) -> None:
    place = "raised by the task's train, a stream, in epoch 0 after 8 samples"
    words = f"ValueError: .*a line that can't be read\n(.*\n)*.*{place}"
    with pytest.raises(RankFailed, match=words):
        run_ranks(1, train, config(**streamed(raises=12), data={"workers": workers}))


class Once(Streamed):
    """Its stream has samples in the first epoch only."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.train.order = self._order  # type: ignore[attr-defined]

    def _order(self) -> list[int]:
        return [] if self.train.epoch else list(range(20))  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_has_nothing_more_is_a_sentence(tmp_path: Path, workers: int) -> None:
    data = {"workers": workers}
    once = {"task": {"name": "tests.trainer.test_streams:Once", "options": {"samples": 20}}, "data": data}
    with pytest.raises(RankFailed, match="TrainingError: the task's train, a stream, has no samples in epoch 1: each"):
        run_ranks(1, train, config(**once))
    run_ranks(1, train, config(tmp_path, **streamed(samples=20), data=data), 2)
    with pytest.raises(RankFailed, match=r"TrainingError: .* has 12 samples in epoch 0, of which 16 were done before"):
        run_ranks(1, train, config(tmp_path, **streamed(samples=20, ends=12), data=data))


def test_a_state_that_a_checkpoint_cannot_have_is_a_sentence_at_the_first_step() -> None:
    with pytest.raises(
        RankFailed, match="state_dict of the task's train must be of plain values and tensors: a PosixPath"
    ):
        run_ranks(1, train, config(**streamed(stateful="path")))


def test_epochs_of_a_stream_without_a_length_are_refused() -> None:
    with pytest.raises(RankFailed, match=r"epochs is 2, but the task's train has no len\(\): set steps in its place"):
        run_ranks(1, train, config(**streamed(), steps=None, epochs=2))


def test_one_process_of_a_rank_reads_a_stream(tmp_path: Path) -> None:
    [run] = run_ranks(1, train, config(tmp_path, **streamed(), data={"workers": 4}, steps=5))
    assert sorted(run["seen"]) == list(range(40))
    assert "data.workers is 4, but one process of each rank reads a stream" in _log(tmp_path)


def test_a_state_of_its_own_spares_reading_again_what_is_done(tmp_path: Path) -> None:
    """The few samples by which a checkpoint is verified are read at each start, and leave the stream where it is."""
    changes = {**streamed(stateful=True), "steps": 5}
    run_ranks(1, train, config(tmp_path, **changes), 3)
    assert run_ranks(1, _read, config(tmp_path, **changes)) == [8 + 8 + 16]


def _read(settings: Any) -> int:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        return int(trainer.task.train.read)
