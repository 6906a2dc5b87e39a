"""A model is built without memory for it, and its weights equal the constructor's own (`parallel/deferred`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.local_models import DEEPSEEK
from tests.trainer.memory import held_tensors
from tests.trainer.ranks import run_ranks
from tests.trainer.shapes import SHAPES
from tests.trainer.toy import Toy, config
from trainloop.distributed.world import joined
from trainloop.parallel.deferred import recorded, tensors_of
from trainloop.tasks.text import SmallGPT, TextOptions
from trainloop.trainer import Trainer

MIB = 1 << 20


class Many(nn.Module):
    """Sets its weights in all the ways that torch offers, and in one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        torch.manual_seed(7)
        self.product = nn.Parameter(torch.randn(4, 4) @ torch.randn(4, 4))
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
        nn.init.orthogonal_(self.layers[0].weight)
        nn.init.trunc_normal_(self.layers[1].weight, std=0.5)
        nn.init.trunc_normal_(self.layers[2].weight, a=1.5)
        nn.init.sparse_(self.layers[3].weight, 0.3)
        nn.init.xavier_normal_(self.layers[4].weight)
        self.layers[5].weight.data.copy_(self.layers[4].weight.data * 2)
        generator = torch.Generator().manual_seed(5)
        self.own = nn.Parameter(torch.empty(4).normal_(generator=generator))
        self.next = nn.Parameter(torch.rand(4, generator=generator))
        self.view = nn.Parameter(torch.randn(6, 4)[2:4])
        self.table = nn.Embedding(10, 4, padding_idx=0)
        self.parts = nn.Sequential(nn.BatchNorm1d(4), nn.LSTM(4, 4), nn.MultiheadAttention(8, 2), nn.Conv2d(2, 2, 3))
        self.register_buffer("mask", torch.ones(5, 5).tril(), persistent=False)
        self.register_buffer("frequencies", 1 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))
        self.register_buffer("constant", torch.tensor([1.0, 2.0]))


def _deepseek() -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    made: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", vocab_size=64, **DEEPSEEK))
    return made


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes))


MODELS = {**SHAPES, "many": Many, "text": lambda: SmallGPT(TextOptions()), "deepseek": _deepseek, "t5": _t5}


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_buffers_are_the_constructors_own_to_the_bit(name: str) -> None:
    torch.manual_seed(3)
    plain = tensors_of(MODELS[name]())
    torch.manual_seed(3)
    model, values = recorded(MODELS[name])
    assert {tensor.device.type for tensor in tensors_of(model).values()} == {"meta"}
    made = dict(values)
    assert made.keys() == plain.keys()
    assert [key for key in plain if not torch.equal(made[key], plain[key])] == []


class Reads(nn.Linear):
    """Reads its weights during construction."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        if self.weight.sum() > 0:
            self.weight.data.zero_()


class Keeps(nn.Linear):
    """Keeps a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.mask = torch.ones(2, 2)


class Leaves(nn.Module):
    """Leaves a parameter uninitialised."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))


@pytest.mark.torch
@pytest.mark.parametrize(
    "made, sentence", [(Reads, "item|is_nonzero|local_scalar"), (Keeps, "mask is a tensor"), (Leaves, "scale is given")]
)
def test_a_model_that_cannot_be_made_without_memory_is_refused(made: type[nn.Module], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        recorded(made)


class Large(Toy):
    """Has 128 MiB of weights in 32 layers; with `reads`, its constructor reads them."""

    def model(self) -> nn.Module:
        layers = [nn.Linear(1024, 1024, bias=False) for _ in range(32)]
        if self.options["reads"]:
            Reads()
        return nn.Sequential(nn.Linear(6, 1024), nn.ModuleList(layers), nn.Linear(1024, 3))


@pytest.mark.torch
def test_a_rank_that_starts_holds_its_shards_and_one_whole_tensor() -> None:
    for most, first in run_ranks(4, _start, False):
        assert first == pytest.approx(1 / 32, rel=0.1)  # uniform between +-1/32
        assert 36 * MIB <= most < 37 * MIB  # a quarter of the layers, one layer, and small tensors
    for most, first in run_ranks(4, _start, True):
        assert first == pytest.approx(1 / 32, rel=0.1)
        assert most > 128 * MIB


def _start(reads: bool) -> tuple[int, float]:
    """Returns the most bytes of tensors that this rank has held, and the largest number in its part of a layer."""
    task: dict[str, Any] = {"name": "tests.trainer.test_deferred:Large", "options": {"reads": reads}}
    changes = {"task": task, "parallel": {"strategy": "fsdp"}, "precision": {"compute": "fp32"}}
    with joined(config().distributed) as world:
        with held_tensors() as held:
            trainer = Trainer(config(**changes), world)
        weight: Any = trainer.replica.model[1][0].weight  # type: ignore[index]
        return held.most, float(weight.detach().to_local().abs().max())
