"""Measures the parts of the time from a new process to its first new step, when a run resumes after a kill.

Two ranks train the review task, save, and are started again, as real processes without preloading. The parts are wall
time on rank 0. `imports` is the time until the program's own code begins.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
PARTS = ("imports", "join", "data", "model", "checkpoint", "first step")

CHILD = """
import json, os, sys, time
marks = [("start", float(os.environ["BENCH_STARTED"]))]
mark = lambda name: marks.append((name, time.time()))
from trainloop.config import parse_config
from trainloop.distributed.world import joined
from trainloop.tasks import build_task
from trainloop.trainer import Trainer
import torch._dynamo  # what the first optimizer would import
config = parse_config(json.loads(os.environ["BENCH_CONFIG"]))
mark("imports")
with joined(config.distributed) as world:
    world.barrier()
    mark("join")
    task = build_task(config.task)
    mark("data")
    trainer = Trainer(config, world, task)
    trainer.log.quiet = True
    mark("model")
    trainer.prepare()
    mark("checkpoint")
    trainer.train_step()
    mark("first step")
    if trainer.state.step == 1:
        trainer.save()
    if world.is_main:
        print(json.dumps({b[0]: b[1] - a[1] for a, b in zip(marks, marks[1:])}))
sys.stdout.flush()
os._exit(0)
"""


def once(folder: Path) -> dict[str, float]:
    """Starts two ranks, which make one step, and returns the time of each part on rank 0."""
    config = {
        "task": {"name": "reviews"},
        "steps": 100,
        "batch": {"size": 64},
        "checkpoint": {"path": str(folder / "checkpoints")},
        "metrics": {"path": str(folder / "report"), "plot": False},
    }
    port = str(random.SystemRandom().randrange(15000, 28000))
    ranks = []
    for rank in range(2):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        bench = {"BENCH_CONFIG": json.dumps(config), "BENCH_STARTED": repr(time.time()), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **place, **bench}
        ranks.append(
            subprocess.Popen([sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    parts: dict[str, float] = json.loads(outputs[0].strip().splitlines()[-1])
    return parts


def main() -> None:
    """Measures, and prints the results."""
    with tempfile.TemporaryDirectory() as name:
        once(Path(name))
        rounds = [once(Path(name)) for _ in range(ROUNDS)]
    print(f"resumed by two ranks, median of {ROUNDS}, seconds")
    for part in PARTS:
        print(f"{part:<12}{statistics.median(parts[part] for parts in rounds):8.2f}")
    print(f"{'all':<12}{statistics.median(sum(parts.values()) for parts in rounds):8.2f}")


if __name__ == "__main__":
    main()
