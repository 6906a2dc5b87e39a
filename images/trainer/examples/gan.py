"""A GAN learns points on a circle: two objectives, each with its own loss, optimizer and clipping.

    python -m trainloop --set task.name=gan:Gan --set steps=2000 --set batch.size=64 --set optimizer.lr=0.01

With this folder on PYTHONPATH. In each step the discriminator is trained first, and then the generator against it, on
the same batch. At the end what it makes lies 0.03 from the circle on average.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim import Adam

from trainloop.objectives import Objective

NOISE = 4


class Networks(nn.Module):
    """Both networks are one model; every pass is a call of it, which FSDP2 needs."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, network: str, inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self, network)(inputs)  # type: ignore[no-any-return]


class Gan:
    def __init__(self, options: dict[str, Any]) -> None:
        angles = torch.rand(options.get("samples", 1024), generator=torch.Generator().manual_seed(0)) * 2 * math.pi
        self.train = torch.stack([angles.cos(), angles.sin()], dim=1).to(options.get("dtype", torch.float32))
        self.evaluation = self.train[:256]

    def model(self) -> nn.Module:
        return Networks()

    def objectives(self, model: nn.Module, settings: Any) -> list[Objective]:
        networks: Any = model
        discriminator = Adam(networks.discriminator.parameters(), lr=settings.lr, betas=(0.5, 0.999))
        generator = Adam(networks.generator.parameters(), lr=settings.lr / 2, betas=(0.5, 0.999))
        return [
            Objective("discriminator", self.discriminator_loss, discriminator, max_norm=1.0),
            Objective("generator", self.generator_loss, generator),
        ]

    def discriminator_loss(self, model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            made = model("generator", noise(batch))
        return (softplus(-model("discriminator", batch["real"])) + softplus(model("discriminator", made))).sum()

    def generator_loss(self, model: Any, batch: Any) -> torch.Tensor:
        return softplus(-model("discriminator", model("generator", noise(batch)))).sum()

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return self.discriminator_loss(model, batch)  # for evaluations, and to verify checkpoints

    def collate(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        return {"real": torch.stack(samples)}

    def count(self, batch: Any) -> int:
        return len(batch["real"])

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"radius": model("generator", noise(batch)).norm(dim=1)}

    def results(self, measured: Any) -> dict[str, float]:
        """Returns how far from the circle what is made lies, on average."""
        return {"distance": float((measured["radius"] - 1).abs().mean())}


def noise(batch: Any) -> torch.Tensor:
    real = batch["real"]
    return torch.randn(len(real), NOISE, dtype=real.dtype, device=real.device)
