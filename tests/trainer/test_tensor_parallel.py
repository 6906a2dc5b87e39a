"""Ranks that share each layer are one process (`parallel/tensor`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import config, largest_difference, same_bits, train, weights
from trainloop.config import Config
from trainloop.distributed.world import World, joined
from trainloop.errors import ConfigError
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


def _settings(folder: Path, tensor: int = 1, **changes: Any) -> Config:
    """Returns a run of the built-in decoder; with more ranks than one it is `tensor` ways tensor parallel."""
    text = folder / "text.txt"
    text.write_bytes(bytes((7 * index * index + index // 11) % 64 + 32 for index in range(600)))
    options = {"path": str(text), "context": 16, "held_out": 0.2, "layers": 2, "width": 16, "heads": 4, "dropout": 0.0}
    parallel = {"strategy": "fsdp", "tensor": tensor}
    return config(**{"task": {"name": "text", "options": options}, "steps": 4, "parallel": parallel, **changes})


def _run(settings: Config, steps: int | None = None) -> dict[str, Any]:
    with joined(settings.distributed) as world, pytest.MonkeyPatch.context() as patch:
        trainer, lines = Trainer(settings, world), list[float]()
        trainer.after_step.append(lambda trainer: lines.append(trainer.optimizer.param_groups[0]["lr"]))
        # Every rank makes the line, and rank 0 alone writes it.
        patch.setattr(trainer.log, "step", lambda step, total, line: lines.extend([line["loss"], line["gradNorm"]]))
        trainer.prepare()
        start = weights(trainer)
        while trainer.state.step < (steps or trainer.state.total):
            trainer.train_step()
        if steps:
            trainer.save()
        else:
            trainer.evaluate()
        return {"start": start, "weights": weights(trainer), "lines": lines, "results": trainer.state.results}


def test_ranks_that_share_each_layer_are_one_rank_of_the_data() -> None:
    worlds = [World(rank, 6, 0, 1, torch.device("cpu"), "gloo", tensor=2) for rank in range(6)]
    assert [world.data_rank for world in worlds] == [0, 0, 1, 1, 2, 2]
    assert {world.data_size for world in worlds} == {3}


@pytest.mark.parametrize("ranks, tensor", [(2, 2), (4, 2), (4, 4)])
def test_the_decoder_is_trained_as_by_one_process(tmp_path: Path, ranks: int, tensor: int) -> None:
    [alone] = run_ranks(1, _run, _settings(tmp_path))
    for run in run_ranks(ranks, _run, _settings(tmp_path, tensor)):
        assert same_bits(run["start"], alone["start"])
        assert run["lines"] == pytest.approx(alone["lines"], abs=1e-10)  # loss, norm before clipping, rate
        assert largest_difference(run["weights"], alone["weights"]) < 1e-10
        assert run["results"] == pytest.approx(alone["results"], abs=1e-10)


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_checkpoints_go_from_one_layout_to_any_other_to_the_bit(tmp_path: Path, form: str) -> None:
    saved = {"path": str(tmp_path / "checkpoints"), "format": form}
    before = run_ranks(4, _run, _settings(tmp_path, 2, checkpoint=saved), 2)[0]["weights"]
    for ranks, tensor in ((1, 1), (2, 2), (4, 1)):
        for run in run_ranks(ranks, _run, _settings(tmp_path, tensor, checkpoint=saved)):
            assert same_bits(run["start"], before)
    through = run_ranks(1, _run, _settings(tmp_path))[0]["weights"]
    assert largest_difference(run["weights"], through) < 1e-10
    before = run_ranks(2, _run, _settings(tmp_path, 1, checkpoint=saved), 3)[0]["weights"]
    assert same_bits(run_ranks(4, _run, _settings(tmp_path, 2, checkpoint=saved))[0]["start"], before)


def test_dropout_is_the_same_where_activations_are(tmp_path: Path) -> None:
    """Ranks of a group that drew other masks would compute other losses, and other gradients of the whole layers."""
    settings = _settings(tmp_path, 2)
    settings = settings.model_copy(
        update={"task": settings.task.model_copy(update={"options": {**settings.task.options, "dropout": 0.3}})}
    )
    runs = run_ranks(4, _run, settings)
    assert all(run["lines"] == runs[0]["lines"] for run in runs)
    assert all(same_bits(run["weights"], runs[0]["weights"]) for run in runs)


def test_a_users_plan_is_followed() -> None:
    task = {"name": "tests.trainer.shapes:Planned", "options": {"0": "columns", "2": "rows"}}
    alone = run_ranks(1, train, config(task=task))[0]
    shared = run_ranks(4, train, config(task=task, parallel={"strategy": "fsdp", "data": 2, "tensor": 2}))
    assert largest_difference(shared[3]["weights"], alone["weights"]) < 1e-10
    assert shared[3]["results"] == pytest.approx(alone["results"], abs=1e-10)


@pytest.mark.parametrize(
    "task, parallel, sentence",
    [
        ({"name": "tests.trainer.toy:Toy"}, {"tensor": 2}, r"the task has no parallel_plan\(model, ranks\)"),
        ({"name": "tests.trainer.toy:Toy"}, {"tensor": 3}, r"parallel\.tensor is 3, which doesn't divide the 2 rank"),
        (
            {"name": "tests.trainer.toy:Toy"},
            {"tensor": 2, "data": 2},
            r"parallel\.data is 2, but 2 rank\(s\) by parallel\.tensor 2 are 1: set it to that",
        ),
        (
            {"name": "tests.trainer.shapes:Planned", "options": {"9": "rows"}},
            {"tensor": 2},
            "parallel_plan names 9",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_a_sentence(task: dict[str, Any], parallel: dict[str, int], sentence: str) -> None:
    with pytest.raises(RankFailed, match=sentence):
        run_ranks(2, train, config(task=task, parallel={"strategy": "fsdp", **parallel}))


def test_heads_have_to_be_cut_whole(tmp_path: Path) -> None:
    from trainloop.tasks.text import Text, TextOptions

    _settings(tmp_path)
    task = Text(TextOptions(path=str(tmp_path / "text.txt"), context=16, width=16, heads=2))
    with pytest.raises(ConfigError, match=r"parallel\.tensor is 4: it must divide task\.options\.heads, which is 2"):
        task.parallel_plan(torch.nn.Identity(), 4)


def test_tensor_parallelism_is_with_fsdp() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.tensor above 1 with parallel\.strategy other than fsdp"):
        config(parallel={"tensor": 2})
