"""Measure cost and benefit of each way of sending gradients: `python -m bench.trainloop_compression --steps 300`.

Every method trains the same small classifier on the same data with the same seeds, with 2 and 4 ranks over gloo on this
machine. Bytes are counted at the collective; theory is the formula in `trainloop.parallel.compression`. Step time on a
loopback interface shows how much a method *computes*. To see how much it saves on a slow network, divide the bytes by
the bandwidth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from trainloop.config import parse_config
from trainloop.distributed.world import joined, ring_bytes
from trainloop.report import read_metrics
from trainloop.tasks.reviews import ReviewModel, ReviewOptions
from trainloop.trainer import Trainer

#: Each method's label, and its settings that differ from the default.
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("fp32", {}),
    ("fp16", {"communication": {"compression": "fp16"}}),
    ("bf16", {"communication": {"compression": "bf16"}}),
    ("powersgd r4", {"communication": {"compression": "powersgd", "powersgd_rank": 4}}),
    ("onebit", {"communication": {"compression": "onebit"}}),
    ("onebit after 100", {"communication": {"compression": "onebit", "start_step": 100}}),
    ("local sgd 4", {"communication": {"local_steps": 4}}),
    ("delayed 4 (embeddings)", {"delayed": {"pattern": "^(characters|pairs)", "every": 4}}),
]
SMALL = {"pairs": 4096, "vocabulary": 2000, "width": 32, "channels": 32, "characters": 64}
POWERSGD_RANK = 4


@dataclass(frozen=True)
class Row:
    """Row is the result of one method with one number of ranks, over all seeds."""

    bytes_sent: float
    step_seconds: float
    losses: list[float]
    accuracies: list[float]


def measure(changes: dict[str, Any], ranks: int, steps: int, seeds: int) -> Row:
    """Trains with each seed; returns the means over the seeds."""
    runs = [_run(changes, ranks, steps, seed) for seed in range(seeds)]
    sent, seconds, losses, accuracies = zip(*runs, strict=True)
    return Row(statistics.mean(sent), statistics.median(seconds), list(losses), list(accuracies))


def _run(changes: dict[str, Any], ranks: int, steps: int, seed: int) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "task": {"name": "reviews", "options": SMALL},
            "steps": steps,
            "batch": {"size": 64},
            "optimizer": {"lr": 2e-3, "max_norm": 0.5},
            "seed": {"value": seed},
            "anomaly": {"enabled": False},
            "gradients": {"ghosts": "off"},
            "metrics": {"path": folder, "every_steps": max(1, steps // 4), "plot": False},
            **changes,
        }
        port = 20000 + (os.getpid() * 7 + ranks * 131 + seed) % 8000
        start_processes(  # type: ignore[no-untyped-call]
            _rank, args=(ranks, port, document), nprocs=ranks, start_method="forkserver"
        )
        lines = read_metrics(Path(folder) / "metrics.jsonl")
    steps_logged = [line for line in lines if line["kind"] == "step"]
    result = [line for line in lines if line["kind"] == "result"][-1]
    # A line's numbers are means over the steps since the previous line.
    since = [0, *(line["step"] for line in steps_logged[:-1])]
    sent = sum(line["bytesSent"] * (line["step"] - begun) for line, begun in zip(steps_logged, since, strict=True))
    return sent / steps_logged[-1]["step"], steps_logged[-1]["stepSeconds"], result["loss"], result["accuracy"]


def _rank(rank: int, ranks: int, port: int, document: dict[str, Any]) -> None:
    one = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in one.items()}, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    config = parse_config(document)
    with joined(config.distributed) as world:
        trainer = Trainer(config, world)
        trainer.log.quiet = True
        trainer.run()


def theory(label: str, ranks: int, steps: int) -> float:
    """Returns the average bytes that a rank sends in a step according to the formula."""
    shapes = {name: p.shape for name, p in ReviewModel(ReviewOptions.model_validate(SMALL)).named_parameters()}
    numbers = sum(shape.numel() for shape in shapes.values())
    fp32 = ring_bytes(numbers, ranks, 4)
    if label.startswith("powersgd"):
        kept = 0
        for shape in shapes.values():
            thin = (shape[0] + shape.numel() // shape[0]) * POWERSGD_RANK
            kept += thin if len(shape) > 1 and thin < shape.numel() else shape.numel()
        return ring_bytes(kept, ranks, 4)
    if label.startswith("delayed"):
        late = sum(shape.numel() for name, shape in shapes.items() if name.startswith(("characters", "pairs")))
        return ring_bytes(numbers - late, ranks, 4) + ring_bytes(late, ranks, 4) / 4
    if label == "onebit after 100":
        plain = min(100 / steps, 1.0)
        return fp32 * (plain + (1 - plain) / 32)
    return fp32 * {"fp32": 1, "fp16": 1 / 2, "bf16": 1 / 2, "onebit": 1 / 32, "local sgd 4": 1 / 4}[label]


def compression(steps: int, seeds: int, ranks: list[int], methods: list[str]) -> None:
    """Prints the table of these methods and fp32."""
    print(f"{steps} steps of 64 reviews, {seeds} seeds, one thread a rank; loss and accuracy on held-out texts")
    titles = f"{'ranks':>5}  {'method':<23}{'bytes/step':>12}{'saved':>8}{'of theory':>10}{'ms/step':>9}"
    print(titles + f"{'loss':>8}{'accuracy, and difference to fp32':>34}")
    for size in ranks:
        base: Row | None = None
        for label, changes in [method for method in METHODS if method[0] in ("fp32", *methods)]:
            row = measure(changes, size, steps, seeds)
            base = base or row
            sent, loss = row.bytes_sent, statistics.mean(row.losses)
            difference = [one - other for one, other in zip(row.accuracies, base.accuracies, strict=True)]
            spread = statistics.stdev(difference) if seeds > 1 else 0.0
            print(
                f"{size:>5}  {label:<23}{sent:>12,.0f}{1 - sent / theory('fp32', size, steps):>8.1%}"
                f"{sent / theory(label, size, steps):>10.3f}{row.step_seconds * 1000:>9.1f}{loss:>8.4f}"
                f"{statistics.mean(row.accuracies):>8.4f} ({statistics.mean(difference):+.4f} ± {spread:.4f})",
                flush=True,
            )


def main() -> None:
    """Reads the command line, and runs the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench.trainloop_compression", description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    labels = [label for label, _ in METHODS]
    parser.add_argument("--methods", nargs="+", default=labels, choices=labels)
    chosen = parser.parse_args()
    compression(chosen.steps, chosen.seeds, chosen.ranks, chosen.methods)


if __name__ == "__main__":
    main()
