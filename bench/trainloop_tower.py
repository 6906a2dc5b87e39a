"""Defines the tower, a model whose memory is easy to compute: equal square layers with ReLU learn the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainloop.data import Batch


class Model(nn.Module):
    """Model is `layers` square layers of `width`."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tower:
    """Tower is the task that trains the model."""

    evaluation = None

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = {"width": 64, "layers": 2, "samples": 256} | options
        self.train = range(self.options["samples"])

    def model(self) -> nn.Module:
        return Model(self.options["width"], self.options["layers"])

    def collate(self, samples: list[int]) -> Batch:
        return {"x": torch.ones(len(samples), self.options["width"])}

    def count(self, batch: Batch) -> int:
        return len(batch["x"])

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        # The backward pass of a sum needs no kept tensors.
        loss: torch.Tensor = model(batch["x"]).sum()
        return loss

    def measure(self, model: Any, batch: Batch) -> dict[str, torch.Tensor]:
        return {}

    def results(self, sums: Any) -> dict[str, float]:
        return {}
