"""Measures how long training waits for a slow data set, depending on how far its loaders read ahead.

There is one rank. Reading a sample takes 0.9 ms, and one in fifty takes 30 ms, as from a network store. A step reads 16
samples, which takes 24 ms on average, with bursts. A step sleeps for 30 ms, as a host does while its device works, so
the figures hardly depend on this machine's cores. Reading in the training process takes at least the sum of both times.
Reading ahead by one step hides the mean time, and reading ahead further hides bursts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from typing import Any

import torch
from torch import nn

from trainloop.config import parse_config
from trainloop.data import Batch
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

STEPS, BATCH = 150, 16
READ, SLOW_READ, SLOW_ONE_IN, STEP = 0.0009, 0.030, 50, 0.030
CASES = [(0, 1), (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]


class Reads:
    """Reads is a data set whose samples take time to read. Their index decides which ones are slow."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> float:
        time.sleep(SLOW_READ if index * 7919 % SLOW_ONE_IN == 0 else READ)
        return float(index)


class Slow:
    """Slow is a task that learns nothing and only takes time."""

    evaluation = None

    def __init__(self, options: dict[str, Any]) -> None:
        self.train = Reads()

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def collate(self, samples: list[float]) -> Batch:
        return {"x": torch.tensor(samples).unsqueeze(1) / len(self.train)}

    def count(self, batch: Batch) -> int:
        return len(batch["x"])

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        time.sleep(STEP)
        loss: torch.Tensor = model(batch["x"]).square().sum()
        return loss

    def measure(self, model: Any, batch: Batch) -> dict[str, torch.Tensor]:
        return {}

    def results(self, sums: Any) -> dict[str, float]:
        return {}


def measure(workers: int, prefetch: int) -> tuple[float, float, float]:
    """Returns the share of wall time that is spent waiting, the 95th percentile of waits, and seconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "task": {"name": "bench.trainloop_data:Slow"},
                "steps": STEPS,
                "batch": {"size": BATCH},
                "data": {"workers": workers, "prefetch": prefetch},
                "anomaly": {"enabled": False},
                "metrics": {"path": folder, "every_steps": STEPS, "plot": False},
            }
        )
        with joined(config.distributed) as world:
            trainer = Trainer(config, world)
            trainer.log.quiet = True
            trainer.prepare()
            fetch, waits = trainer.loader.fetch, []

            def timed() -> Any:
                waits.append((fetched := fetch()).waited)
                return fetched

            trainer.loader.fetch = timed  # type: ignore[method-assign]
            # The first steps aren't counted, because the loaders are still starting.
            for _ in range(10):
                trainer.train_step()
            waits.clear()
            began = time.perf_counter()
            for _ in range(STEPS - 10):
                trainer.train_step()
            seconds = time.perf_counter() - began
    return sum(waits) / seconds, statistics.quantiles(waits, n=20)[-1], seconds / len(waits)


def main() -> None:
    """Measures, and prints the results."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{STEPS - 10} steps of {BATCH} samples, a step of {STEP * 1000:.0f} ms, one rank")
    print(f"{'loaders':<9}{'read ahead':>11}{'data wait':>11}{'95th percentile':>17}{'ms a step':>11}")
    for workers, prefetch in CASES:
        share, slowest, seconds = measure(workers, prefetch)
        ahead = f"{prefetch} steps" if workers else "none"
        print(f"{workers:<9}{ahead:>11}{share:>11.1%}{slowest * 1000:>14.1f} ms{seconds * 1000:>11.1f}", flush=True)


if __name__ == "__main__":
    main()
