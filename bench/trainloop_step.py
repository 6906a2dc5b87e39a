"""Measures what a step of trainloop costs over a loop written by hand, with the same model, data and optimizer.

The two are interleaved, round by round, over the same batches; the ratio is the median of the rounds' ratios. CPU
time is printed beside wall time, because it says the same on a machine that others use too. Goal: under 1.02.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainloop.config import parse_config
from trainloop.data import permutation
from trainloop.distributed.world import joined
from trainloop.tasks import build_task
from trainloop.trainer import Trainer

ROUNDS, STEPS = 20, 10
BATCH, LR, MAX_NORM = 64, 2e-3, 0.5


def bare_loop(task: Any, model: nn.Module) -> Callable[[], None]:
    """Trains as one writes it on the first day: no checks, no metrics, no checkpoints."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    order = permutation(0, 0, len(task.train))
    start = 0

    def step() -> None:
        nonlocal start
        batch = task.collate([task.train[index] for index in order[start : start + BATCH]])
        start = (start + BATCH) % (len(order) - BATCH)
        loss = functional.cross_entropy(model(batch["characters"]), batch["labels"], label_smoothing=0.05)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Returns wall and CPU seconds of a step, over a round."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # so that the trainer doesn't fit its threads to the machine
    folder = tempfile.mkdtemp()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = f"{folder}/progress"
    config = parse_config(
        {
            "task": {"name": "reviews"},
            "epochs": 100,
            "batch": {"size": BATCH},
            "optimizer": {"lr": LR, "max_norm": MAX_NORM, "weight_decay": 0.1},
            "schedule": {"kind": "constant"},
            "metrics": {"path": folder, "every_steps": 10, "plot": False},
        }
    )
    task = build_task(config.task)
    with joined(config.distributed) as world:
        trainer = Trainer(config, world, task)
        trainer.log.quiet = True
        trainer.prepare()
        bare = bare_loop(task, task.model())
        timed(bare), timed(trainer.train_step)
        times = []
        for number in range(ROUNDS):
            # Who comes first changes: what the other left in the caches must not always help the same one.
            if number % 2:
                ours = timed(trainer.train_step)
                times.append((timed(bare), ours))
            else:
                times.append((timed(bare), timed(trainer.train_step)))
    ratios = {}
    print(f"{'':<6}{'by hand ms':>12}{'trainloop ms':>14}{'ratio':>8}   rounds")
    for index, kind in enumerate(("wall", "CPU")):
        by_hand = statistics.median(hand[index] for hand, _ in times)
        ours = statistics.median(loop[index] for _, loop in times)
        rounds = sorted(loop[index] / hand[index] for hand, loop in times)
        ratios[kind] = statistics.median(rounds)
        spread = f"{rounds[0]:.3f} to {rounds[-1]:.3f}"
        print(f"{kind:<6}{by_hand * 1000:>12.2f}{ours * 1000:>14.2f}{ratios[kind]:>8.3f}   {spread}")
    print("goal: ratio under 1.020")


if __name__ == "__main__":
    main()
