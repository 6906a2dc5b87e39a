"""The example's decoder uses flash attention on a GPU, and its blocks compile."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import trainloop_decoder as bench
from tests.trainer.test_decoder import decoder
from trainloop.parallel.blocks import BlockSettings, prepared

OPTIONS = decoder.DecoderOptions.model_validate(
    {"context": 256, "layers": 2, "width": 256, "heads": 4, "hidden": 512, "vocabulary": 512}
)


def test_a_compiled_decoder_in_bf16_takes_flash_attention_and_comes_near_the_one_in_fp32() -> None:
    torch.manual_seed(0)
    model = decoder.Decoder(OPTIONS).cuda()
    tokens = torch.randint(0, 512, (4, 256), device="cuda")
    expected = model(tokens)
    compiled = prepared(BlockSettings(compile=True), model)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cuda", dtype=torch.bfloat16):
        found = compiled(tokens)
        found.float().square().mean().backward()
    assert found.dtype == torch.bfloat16
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_this_cards_peak_is_known() -> None:
    """Otherwise the benchmark prints no MFU: add the card to its table."""
    assert bench.peak_tflops(torch.cuda.get_device_name())
