"""One line names a rank's hardware and software: the GPU, its driver, CUDA and NCCL."""

from __future__ import annotations

import re

import torch

from trainloop.distributed import diagnostics


def test_the_line_has_the_gpus_name_driver_and_libraries() -> None:
    torch.zeros(1, device="cuda")
    line = diagnostics.describe(torch.device("cuda", 0))
    assert line.startswith(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, driver ")
    assert re.search(r", driver \d+\.\d+(\.\d+)?, (CUDA|HIP) \d+\.\d+[\w.]*, (NCCL|RCCL) \d+\.\d+\.\d+, ", line), line
    assert f"of {torch.cuda.device_count() - 1} other GPUs, torch {torch.__version__}, one rank without a" in line
