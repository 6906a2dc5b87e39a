"""A run exports its weights alone as safetensors; no rank holds more than a few of them whole
(`checkpoints/export`).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import nn

from tests.trainer.memory import held_tensors
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy, config
from trainloop.checkpoints.export import Layout, export_weights
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

ODD = f"{__name__}:OddTask"
#: The plan of `Planned`: one layer is cut along rows and one along columns.
PLAN = {"0": "columns", "2": "rows"}
#: The size in bytes of one of `Large`'s matrices, of which it has `MATRICES`.
MATRIX, MATRICES = 4 << 20, 16


class Odd(nn.Module):
    """Has tied weights, a matrix in columns, a scalar, an empty tensor, other types, and a state that isn't a
    tensor.
    """

    def __init__(self, in_columns: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.head, self.tied = nn.Linear(6, 6), nn.Linear(6, 3)
        if in_columns:
            self.head.weight = nn.Parameter(torch.randn(6, 6).t())
        first, second = (layer.get_submodule("0") for layer in self.layers)
        second.weight = first.weight
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("none", torch.empty(0, 2))
        self.register_buffer("flags", torch.tensor([True, False, True]))

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}

    def forward(self, points: torch.Tensor) -> Any:
        for layer in self.layers:
            points = layer(points)
        return self.tied(self.head(points))


class OddTask(Toy):
    def model(self) -> nn.Module:
        return Odd(not self.options.get("fsdp"))  # FSDP2 rejects matrices in columns


class Large(Toy):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 1024), *(nn.Linear(1024, 1024) for _ in range(MATRICES)), nn.Linear(1024, 3))


def _run(settings: Config) -> dict[str, torch.Tensor]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        state = trainer.replica.model_state()
        return {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    ("ranks", "task", "parallel"),
    [
        (1, ODD, {}),
        (2, ODD, {}),
        (2, ODD, {"strategy": "zero1"}),
        (4, ODD, {"strategy": "fsdp"}),
        (4, "tests.trainer.shapes:Planned", {"strategy": "fsdp", "tensor": 2}),
    ],
)
@pytest.mark.parametrize("compute", ["fp64", "bf16"])
def test_the_file_has_the_trained_weights_to_the_bit(
    tmp_path: Path, ranks: int, task: str, parallel: dict[str, Any], compute: str
) -> None:
    settings = config(
        tmp_path,
        task={"name": task, "options": {"double": compute == "fp64", "fsdp": "strategy" in parallel, **PLAN}},
        parallel=parallel,
        precision={"compute": compute},
        gradients={"ghosts": "off"},
    )
    weights = run_ranks(ranks, _run, settings)[0]
    file = tmp_path / "checkpoints" / "model.safetensors"
    loaded = load_file(file)
    assert loaded.keys() == weights.keys()
    for name, tensor in weights.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name], tensor)
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert not list(file.parent.glob(".model*"))


def test_the_bytes_are_those_of_safetensors_own_writer(tmp_path: Path) -> None:
    state = {name: value for name, value in Odd().state_dict().items() if isinstance(value, torch.Tensor)}
    state["half"] = torch.randn(3, 5).bfloat16()
    layout = Layout({name: (value.dtype, value.shape) for name, value in state.items()}, {})
    assert layout.write(tmp_path / "x", tmp_path / ".x", (state[name] for name in layout.order)) == []
    alone = {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    written, expected = (tmp_path / "x").read_bytes(), save(alone, {"format": "pt"})
    length = int.from_bytes(written[:8], "little")
    assert written[8 + length :] == expected[8 + length :] and len(written) == len(expected) == layout.bytes
    assert json.loads(written[8 : 8 + length]) == json.loads(expected[8 : 8 + length])


@pytest.mark.parametrize(("ranks", "tensor"), [(1, 1), (2, 1), (4, 2)])
def test_no_rank_holds_more_than_a_few_tensors_whole(tmp_path: Path, ranks: int, tensor: int) -> None:
    """Gathering all of them, with a copy of each for save_file, would take 32 matrices."""
    task = {"name": f"{__name__}:{'Large' if tensor == 1 else 'LargePlanned'}"}
    parallel = {"strategy": "fsdp", "tensor": tensor}
    settings = config(tmp_path, task=task, parallel=parallel, precision={"compute": "fp32"})
    assert max(run_ranks(ranks, _export_of_a_start, settings)) < 10 * MATRIX
    assert len(load_file(tmp_path / "checkpoints" / "model.safetensors")) == 2 * (MATRICES + 2)


class LargePlanned(Large):
    def parallel_plan(self, model: nn.Module, ranks: int) -> dict[str, Any]:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {"1": ColwiseParallel(), "2": RowwiseParallel()}


def _export_of_a_start(settings: Config) -> int:
    """Returns the most bytes of tensors that the export held, beyond the model's own."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        assert trainer.checkpoints is not None
        with held_tensors() as held:
            assert (
                export_weights(trainer.replica.model, trainer.checkpoints, trainer.log.warn)
                is trainer.checkpoints.is_writer
            )
        return held.most


def test_a_disk_that_is_full_in_the_midst_of_it_leaves_no_rank_waiting_nor_half_a_file(tmp_path: Path) -> None:
    task = {"name": ODD, "options": {"fsdp": True}}
    settings = config(tmp_path, task=task, parallel={"strategy": "fsdp"}, gradients={"ghosts": "off"})
    warned = run_ranks(2, _on_a_full_disk, settings)
    directory = tmp_path / "checkpoints"
    assert len(warned[0]) == 1 and warned[1] == []
    assert re.fullmatch(
        rf"model\.safetensors can't be written to {directory}: No space left on device; [\d,]+ bytes are free, "
        r"[\d,]+ and a little more are needed",
        warned[0][0],
    )
    assert [entry.name for entry in directory.iterdir() if "model" in entry.name] == []


def _on_a_full_disk(settings: Config) -> list[str]:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    with joined(settings.distributed) as world:
        trainer, warned = Trainer(settings, world), list[str]()
        trainer.prepare()
        trainer.save()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.log, "warn", warned.append)
            patch.setattr("trainloop.checkpoints.export.chunks", full)
            assert trainer.checkpoints is not None and not export_weights(
                trainer.replica.model, trainer.checkpoints, trainer.log.warn
            )
        return warned
