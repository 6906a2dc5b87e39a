"""The devices that `nvidia-smi -L` lists are given to pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster_local.devices import NVIDIA, found

WHOLE = """\
GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-11aa)
GPU 1: NVIDIA RTX A6000 (UUID: GPU-22bb)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11aa)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba6)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22bb)
"""


@pytest.mark.parametrize(
    ("output", "code", "devices"),
    [
        (WHOLE, 0, ("0", "1")),
        (SLICED, 0, ("MIG-c6d4", "MIG-cba6", "GPU-22bb")),
        # Then the driver's files count.
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, ("0",)),
        ("No devices found.\n", 0, ("0",)),
    ],
)
def test_nvidia_smi_lists_the_devices(tmp_path: Path, output: str, code: int, devices: tuple[str, ...]) -> None:
    (tmp_path / "list").write_text(output)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path / 'list'}\nexit {code}\n")
    program.chmod(0o755)
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidia0").touch()
    assert found({"PATH": f"{tmp_path}:/usr/bin:/bin"}, tmp_path / "root")[NVIDIA] == devices
