"""Recomputed or compiled blocks train as plain ones do, and their checkpoints are the same (`blocks`)."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import FEATURES, Toy, config, largest_difference, train, weights
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.parallel.blocks import BlockSettings, prepare
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

FULL = {"activation_checkpointing": "full"}
COMPILED = {"compile": "aot_eager"}


class Block(nn.Module):
    """Has a residual and dropout, which draws the same numbers again only if the generators are restored."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.layers(hidden)


class Network(nn.Module):
    def __init__(self, depth: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last = nn.Linear(width, 3)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.first(points)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


class Deep(Toy):
    def model(self) -> nn.Module:
        return Network(3)


def settings(path: Path | None = None, strategy: str = "ddp", **model: Any) -> Config:
    """Returns a run of three steps with 40 samples each, two micro-batches per rank."""
    task = {"name": "tests.trainer.test_block_settings:Deep"}
    batch, parallel = {"size": 40, "per_rank": 10}, {"strategy": strategy}
    return config(path, task=task, blocks=model, steps=3, batch=batch, parallel=parallel)


#: The strategy and the blocks of each run.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ddp", {}),
    "recomputed-ddp": ("ddp", FULL),
    "recomputed-fsdp": ("fsdp", FULL),
    "compiled-fsdp": ("fsdp", COMPILED),
    "both-ddp": ("ddp", {**FULL, **COMPILED}),
    "both-fsdp": ("fsdp", {**FULL, **COMPILED}),
}


@pytest.fixture(scope="module")
def trained() -> list[dict[str, dict[str, torch.Tensor]]]:
    """Returns each of two ranks' weights after training in each way."""
    return run_ranks(2, _in_all_ways)


def _in_all_ways() -> dict[str, dict[str, torch.Tensor]]:
    """Train in one way after the other, because a process that compiles spends seconds on imports."""
    found = {}
    with joined(settings().distributed) as world:
        for way, (strategy, model) in WAYS.items():
            torch._dynamo.reset()
            trainer = Trainer(settings(strategy=strategy, **model), world)
            trainer.run()
            found[way] = weights(trainer)
    return found


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_recomputed_and_compiled_blocks_take_the_same_steps_with_dropout(
    trained: list[dict[str, dict[str, torch.Tensor]]], way: str
) -> None:
    for rank in trained:
        assert largest_difference(rank[way], trained[0]["plain"]) < 1e-12


def test_a_run_goes_on_with_and_without(tmp_path: Path, trained: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    for model in ({**FULL, **COMPILED}, {}):
        run_ranks(2, train, settings(tmp_path, **model), 1)
    resumed = run_ranks(2, train, settings(tmp_path, **FULL))
    assert resumed[0]["state"].step == 3
    assert largest_difference(resumed[0]["weights"], trained[0]["plain"]) < 1e-12


def kept_bytes(model: nn.Module) -> int:
    """Returns how much the forward pass keeps for the backward pass."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(torch.ones(256, FEATURES))
    return kept


@pytest.mark.parametrize("compiler", [False, "aot_eager"])
def test_recomputing_keeps_a_block_of_activations_less_for_each(compiler: bool | str) -> None:
    """Only the input of each block is kept: at most a quarter, because a block is four times as wide inside.

    All blocks are compiled once, as one graph, whether or not they are recomputed.
    """
    plain, recomputed = Network(8), Network(8)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    before = kept_bytes(prepare(BlockSettings(compile=compiler), plain))
    after = kept_bytes(prepare(BlockSettings(compile=compiler, activation_checkpointing="full"), recomputed))
    assert after < before / 4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if compiler else 0)


def test_a_copy_of_a_recomputed_model_computes_with_its_own_weights() -> None:
    model = prepare(BlockSettings(activation_checkpointing="full"), Network(2)).eval()
    average, points = copy.deepcopy(model), torch.ones(2, FEATURES)
    with torch.no_grad():
        for parameter in model.blocks[0].parameters():  # type: ignore[union-attr]
            parameter.add_(1.0)
    assert not torch.equal(average(points), model(points))
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Network(2).named_parameters()]


def test_a_model_without_blocks_is_compiled_whole_and_not_recomputed() -> None:
    flat = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    assert prepare(BlockSettings(compile="eager"), flat)._compiled_call_impl is not None
    with pytest.raises(ConfigError, match=r"is 'full', but the model has no repeated blocks: use none"):
        prepare(BlockSettings(activation_checkpointing="full"), flat)


def test_a_backend_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"blocks\.compile is 'inductr': it must be true, false or one of torch's"):
        prepare(BlockSettings(compile="inductr"), Network(1))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs a compiler of C\+\+ for inductor, and g\+\+ isn't there"):
        prepare(BlockSettings(compile=True), Network(1))
