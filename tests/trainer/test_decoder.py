"""The example of a decoder with a billion parameters, and its benchmark, work at sizes that a CPU can handle."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bench import trainloop_decoder as bench
from tests.trainer.ranks import run_ranks
from tests.trainer.test_tasks import english, results, run
from trainloop.config import parse_config
from trainloop.parallel.blocks import blocks

EXAMPLES = Path(__file__).parents[2] / "images" / "trainer" / "examples"
sys.path.append(str(EXAMPLES))  # in each rank too

decoder: Any = importlib.import_module("decoder")
SMALL = {"context": 32, "layers": 2, "width": 32, "heads": 2, "hidden": 64, "vocabulary": 256}

__all__ = ["english"]


def test_the_example_has_about_a_billion_parameters_in_blocks_that_are_compiled_one_by_one() -> None:
    with torch.device("meta"):
        model = decoder.Decoder(decoder.DecoderOptions())
    assert sum(parameter.numel() for parameter in model.parameters()) == 992_028_672
    assert len(blocks(model)) == 18


def test_a_tokens_logits_dont_depend_on_later_tokens_but_on_the_order_of_those_before() -> None:
    torch.manual_seed(0)
    model = decoder.Decoder(decoder.DecoderOptions.model_validate(SMALL)).eval()
    tokens = torch.randint(0, 256, (2, 32))
    later, exchanged = tokens.clone(), tokens.clone()
    later[:, 9:] = 0
    exchanged[:, [2, 3]] = tokens[:, [3, 2]]
    assert torch.allclose(model(tokens)[:, :9], model(later)[:, :9], atol=1e-6)
    assert not torch.allclose(model(tokens)[:, 9:], model(later)[:, 9:], atol=1e-4)
    assert not torch.allclose(model(tokens)[:, 8], model(exchanged)[:, 8], atol=1e-6)


def test_turned_queries_and_keys_are_compared_by_how_far_apart_they_are() -> None:
    rotation = decoder.Decoder(decoder.DecoderOptions.model_validate(SMALL)).rotation
    query, key = torch.randn(2, 1, 16).unbind()
    queries, keys = (decoder.rotated(one.expand(32, 16), rotation) for one in (query, key))
    products = queries @ keys.T
    for distance in (0, 5):
        alike = products.diagonal(-distance)
        assert torch.allclose(alike, alike[:1].expand_as(alike), atol=1e-5)


@pytest.mark.torch
def test_the_example_learns_below_the_unigram_entropy(tmp_path: Path, english: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "decoder.yaml").read_text())
    parse_config(document)
    task = {**document["task"], "options": {**SMALL, "path": str(english)}}
    shorter: dict[str, Any] = {"steps": 80, "schedule": document["schedule"], "blocks": {"compile": "aot_eager"}}
    found = run_ranks(2, results, run(tmp_path, task, **shorter))[0]
    assert found["loss"] < found["unigramLoss"] - 0.1


@pytest.mark.torch
def test_the_benchmark_runs_on_a_cpu_and_says_that_it_measures_nothing() -> None:
    [found] = run_ranks(1, bench.measured, 5.0)
    text = bench.table(found)
    assert {len(rounds) for rounds in found["rounds"].values()} == {10} and found["stallSeconds"]
    assert "no MFU: the peak of 'CPU' isn't known" in text and "this is no measurement" in text


def test_the_share_of_the_peak_is_counted_by_the_card() -> None:
    """GPT-3's 175 billion parameters are the example of PaLM's appendix B: attention is a few percent of the
    operations.
    """
    assert bench.operations(175 * 10**9, 96, 12288, 2048) == 6 * 175 * 10**9 + 12 * 96 * 12288 * 2048
    names = {"NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA H200": 989, "NVIDIA A100-SXM4-80GB": 312}
    names |= {"NVIDIA L40S": 362, "NVIDIA B200": 2250, "NVIDIA L4": 121}
    assert {name: bench.peak_tflops(name) for name in names} == names
    assert bench.peak_tflops("NVIDIA GeForce GTX 1080") is None
    found = {
        "card": "NVIDIA H100 80GB HBM3",
        "torch": "2.13.0",
        "precision": "bf16",
        "parameters": 10**9,
        "sizes": {"layers": 16, "width": 2048, "context": 2048},
        "tokens": 32768,
        "steps": 1,
        "rounds": {"bare": [0.4, 0.4, 0.4], "trainloop": [0.401, 0.4, 0.4002]},
        "peakBytes": {"bare": 60 << 30, "trainloop": 61 << 30},
        "stallSeconds": {"checkpoint": 0.2, "allocation": 5.0},
    }
    text = bench.table(found)
    # 6.8 billion operations per token, 81,920 tokens per second.
    assert "bare           400.00     81,920   56.4%   53.0%     60.00" in text
    assert "trainloop over bare: 0.20 ms a step (0.05%)" in text
    assert "a checkpoint: 0.200 s, 0.05% of 1,000 steps' time, and once 5.0 s for the memory" in text
