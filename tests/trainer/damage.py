"""Tests write checkpoints and damage them with these functions."""

from __future__ import annotations

from pathlib import Path

import torch

from trainloop.checkpoints import saving, storage


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def written(folder: Path, step: int, value: float = 0.0) -> storage.Checkpoint:
    return saving.write(folder, step, {"tensor": torch.full((4,), value)}, {"results": {"accuracy": value}})
