"""Errors name parameters without a gradient, and ranks whose parameters differ."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import config, toy, train
from trainloop.distributed.world import joined
from trainloop.parallel.gradients import checksums, compare_parameters, ghosts, recording


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_unused_layer_is_named_after_the_first_step(ranks: int) -> None:
    with pytest.raises(RankFailed, match=r"no rank has a gradient for 0\.unused\.weight, 0\.unused\.bias"):
        run_ranks(ranks, train, config(**toy(unused=True)))


@pytest.mark.torch
def test_a_layer_that_only_some_ranks_use_is_named_with_the_others() -> None:
    [message] = set(run_ranks(3, _with_a_layer_for_rank_1))
    assert "after the first step: rank 0, 2 has none for 1.weight, 1.bias, the others do" in message


def _with_a_layer_for_rank_1() -> str:
    with joined(config().distributed) as world:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        with recording(model) as reached:
            (model if world.rank == 1 else model[0])(torch.ones(1, 3)).sum().backward()
        return str(ghosts(model, reached, world))


@pytest.mark.torch
def test_an_unused_layer_may_be_only_a_warning() -> None:
    changes = {"gradients": {"ghosts": "warn"}, "parallel": {"find_unused_parameters": True}}
    assert run_ranks(2, train, config(**toy(unused=True), **changes))[0]["state"].step == 6


@pytest.mark.torch
def test_a_rank_with_one_flipped_bit_is_named_with_the_parameter() -> None:
    for message in run_ranks(3, _with_a_flipped_bit):
        assert message.startswith("parameters differ between ranks: rank 2 differs, first in 1.weight")


def _with_a_flipped_bit() -> str:
    with joined(config().distributed) as world:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        compare_parameters(model, world)
        if world.rank == 2:
            model[1].weight.data.view(torch.int32)[0, 0] ^= 1
        try:
            compare_parameters(model, world)
        except Exception as error:
            return str(error)
        return "nothing was found"


@given(st.integers(1, 50), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_checksum_sees_exchanged_values_and_any_flipped_bit(size: int, where: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(1.0, size + 2).to(dtype)
    exchanged = tensor.flip(0)
    flipped = tensor.clone()
    bits = flipped.view(torch.int16)
    bits[where % bits.numel()] ^= 1 << (where % 15)
    assert checksums([tensor]) != checksums([flipped])
    assert checksums([tensor]) != checksums([exchanged])
    assert checksums([tensor]) == checksums([tensor.clone()])
