"""Ranks that share each layer compute what one process does (`parallel/sharded`).

For each operation on shared layers, torch's preparation takes a rank a second and serves later runs in the same
process, so a group of ranks makes several runs. Only resuming is tested with two ways and two ranks, because four ways
with four ranks use the same code.
"""

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
    """Returns a run of the built-in decoder; with more than one rank it is `tensor` ways tensor parallel."""
    text = folder / "text.txt"
    text.write_bytes(bytes((7 * index * index + index // 11) % 64 + 32 for index in range(600)))
    options = {"path": str(text), "context": 16, "held_out": 0.2, "layers": 2, "width": 16, "heads": 4, "dropout": 0.0}
    parallel = {"strategy": "fsdp", "tensor": tensor}
    return config(**{"task": {"name": "text", "options": options}, "steps": 4, "parallel": parallel, **changes})


def _runs(whole: list[Config], saved: list[Config], steps: int = 0) -> list[dict[str, Any]]:
    """Make these runs one after the other: the first ones to their end, the others until they save after `steps`."""
    with joined((*whole, *saved)[0].distributed) as world:
        return [_run(settings, world, None) for settings in whole] + [_run(each, world, steps) for each in saved]


def _started(runs: list[Config]) -> list[dict[str, torch.Tensor]]:
    """Returns the weights that these runs begin with."""
    found = []
    with joined(runs[0].distributed) as world:
        for settings in runs:
            trainer = Trainer(settings, world)
            trainer.prepare()
            found.append(weights(trainer))
    return found


def _run(settings: Config, world: World, steps: int | None) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        trainer, lines = Trainer(settings, world), list[float]()
        trainer.after_step.append(lambda trainer: lines.append(trainer.optimizer.param_groups[0]["lr"]))
        # Every rank makes the line, but only rank 0 writes it.
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the text."""
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """Returns the run of one process."""
    [[run]] = run_ranks(1, _runs, [_settings(folder)], [])
    return dict(run)


@pytest.fixture(scope="module")
def of_four(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns the results of these runs on each of four ranks: two ways, four ways, two ways with dropout, and two that
    save after two steps.
    """
    two = _settings(folder, 2)
    dropout = two.task.model_copy(update={"options": {**two.task.options, "dropout": 0.3}})
    whole = [two, _settings(folder, 4), two.model_copy(update={"task": dropout})]
    return run_ranks(4, _runs, whole, _saved(folder, 2), 2)


def _saved(folder: Path, tensor: int) -> list[Config]:
    """Returns runs with checkpoints, in both formats."""
    forms = ("full", "sharded")
    return [
        _settings(folder, tensor, checkpoint={"path": str(folder / f"checkpoints-{form}"), "format": form})
        for form in forms
    ]


@pytest.mark.parametrize("run", [0, 1], ids=["two ways", "four ways"])
def test_the_decoder_is_trained_as_by_one_process(
    alone: dict[str, Any], of_four: list[list[dict[str, Any]]], run: int
) -> None:
    for rank in of_four:
        assert same_bits(rank[run]["start"], alone["start"])
        assert rank[run]["lines"] == pytest.approx(alone["lines"], abs=1e-10)  # loss, norm before clipping, rate
        assert largest_difference(rank[run]["weights"], alone["weights"]) < 1e-10
        assert rank[run]["results"] == pytest.approx(alone["results"], abs=1e-10)


def test_checkpoints_go_from_one_layout_to_any_other_to_the_bit(
    folder: Path, alone: dict[str, Any], of_four: list[list[dict[str, Any]]]
) -> None:
    before = [run["weights"] for run in of_four[0][3:]]
    assert len(before) == 2
    for ranks, tensor in ((1, 1), (2, 2)):
        for started in run_ranks(ranks, _started, _saved(folder, tensor)):
            assert all(map(same_bits, started, before))
    for runs in run_ranks(4, _runs, _saved(folder, 1), []):
        for run, saved in zip(runs, before, strict=True):
            assert same_bits(run["start"], saved)
            assert largest_difference(run["weights"], alone["weights"]) < 1e-10
    before = [run["weights"] for run in run_ranks(2, _runs, [], _saved(folder, 1), 3)[0]]
    for started in run_ranks(4, _started, _saved(folder, 2)):
        assert all(map(same_bits, started, before))


def test_dropout_is_the_same_where_activations_are(of_four: list[list[dict[str, Any]]]) -> None:
    """If ranks of a group drew different masks, they would compute different losses, and different gradients of the
    whole layers.
    """
    runs = [rank[2] for rank in of_four]
    assert all(run["lines"] == runs[0]["lines"] for run in runs)
    assert all(same_bits(run["weights"], runs[0]["weights"]) for run in runs)


def test_a_users_plan_is_followed() -> None:
    task = {"name": "tests.trainer.shapes:Planned", "options": {"0": "columns", "2": "rows"}}
    alone = run_ranks(1, train, config(task=task))[0]
    for data in (2, [2, 1]):
        shared = run_ranks(4, train, config(task=task, parallel={"strategy": "fsdp", "data": data, "tensor": 2}))
        assert largest_difference(shared[3]["weights"], alone["weights"]) < 1e-10
        assert shared[3]["results"] == pytest.approx(alone["results"], abs=1e-10)


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_replicas_of_ranks_that_share_each_layer_save_what_other_layouts_load(tmp_path: Path, form: str) -> None:
    saved = {"path": str(tmp_path / "checkpoints"), "format": form}
    parallel = {"strategy": "fsdp", "data": [2, 2], "tensor": 2}
    [[alone]] = run_ranks(1, _runs, [_settings(tmp_path)], [])
    [run] = run_ranks(8, _runs, [], [_settings(tmp_path, parallel=parallel, checkpoint=saved)], 2)[7]
    for [found] in run_ranks(2, _runs, [_settings(tmp_path, 2, checkpoint=saved)], []):
        assert same_bits(found["start"], run["weights"])
    assert largest_difference(found["weights"], alone["weights"]) < 1e-10


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
            {"name": "tests.trainer.toy:Toy"},
            {"data": [2, 2]},
            r"parallel\.data is \[2, 2\], but 2 rank\(s\) by parallel\.tensor 1 are 2: set it to that",
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
