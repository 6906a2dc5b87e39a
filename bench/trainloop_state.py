"""Measures the cost of state in memory: in a step, when a rank survives a fault, and when the next attempt resumes.

Two ranks of one worker train the review task as real processes. A step's cost is the processor time of the calls that
keep the state, as a part of the training thread's processor time, so other programs don't count. After the second
start, the ranks resume from the state that the first start's survivor has written.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = 2000
ROUNDS = 3

CHILD = """
import json, os, sys, time
from collections import defaultdict
from trainloop.config import parse_config
from trainloop.distributed.world import joined
from trainloop.recovery.snapshots import Snapshots
from trainloop.trainer import Trainer
spent = defaultdict(float)  # of this thread's time on a processor
def timed(owner, name):
    true = getattr(owner, name)
    def call(*arguments, **named):
        began = time.thread_time()
        try:
            return true(*arguments, **named)
        finally:
            spent[name] += time.thread_time() - began
    setattr(owner, name, call)
timed(Snapshots, "make")
config = parse_config(json.loads(os.environ["BENCH_CONFIG"]))
with joined(config.distributed) as world:
    trainer = Trainer(config, world)
    trainer.log.quiet = True
    timed(trainer.memory, "changing")
    timed(trainer.memory, "finished")
    true_resume = trainer.memory.resume
    def resume(newest):
        world.barrier()
        began = time.perf_counter()
        found = true_resume(newest)
        spent["resume"] = time.perf_counter() - began
        return found
    trainer.memory.resume = resume
    trainer.prepare()
    resumed = spent["resume"]
    for _ in range(20):
        trainer.train_step()
    spent.clear()
    began = time.thread_time()
    for _ in range(int(os.environ["BENCH_STEPS"])):
        trainer.train_step()
    seconds = time.thread_time() - began
    snapshot, steps = spent["make"], spent["changing"] + spent["finished"]
    world.barrier()
    trainer.memory.forget()
    world.barrier()
    began = time.perf_counter()
    if world.rank == 0:
        trainer.memory._keeper.save()
    written = time.perf_counter() - began
    world.barrier()
    if world.is_main:
        size = trainer.memory._keeper._size
        print(json.dumps({"step": seconds, "own": steps - snapshot, "snapshot": snapshot, "written": written,
                          "resume": resumed, "size": size}))
sys.stdout.flush()
os._exit(0)
"""


def once(memory: Path, attempt: int) -> dict[str, float]:
    """Starts two ranks, which resume from `memory`; returns rank 0's measurements."""
    config: dict[str, Any] = {
        "task": {"name": "reviews"},
        "steps": 100_000,
        "batch": {"size": 64},
        "metrics": {"path": str(memory / "report"), "plot": False},
    }
    port = str(random.SystemRandom().randrange(15000, 28000))
    ranks = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        bench = {"BENCH_CONFIG": json.dumps(config), "BENCH_STEPS": str(STEPS)}
        bench |= {"TRAINMASTER_MEMORY_DIR": str(memory), "TRAINMASTER_ATTEMPT": str(attempt)}
        environment = {**os.environ, **place, **bench}
        command = [sys.executable, "-c", CHILD]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    measured: dict[str, float] = json.loads(outputs[0].strip().splitlines()[-1])
    return measured


def main() -> None:
    """Measures, and prints the results."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        once(Path(name), 1)
        rounds = [once(Path(name), attempt) for attempt in range(2, 2 + ROUNDS)]

    def median(key: str) -> float:
        return statistics.median(each[key] for each in rounds)

    step = median("step")
    print(f"two ranks, a state of {median('size') / 1e6:.1f} MB, median of {ROUNDS}")
    print(f"{'a step, on a processor':<36}{step / STEPS * 1e3:8.2f} ms")
    print(f"{'its own state, in every step':<36}{median('own') / STEPS * 1e3:8.3f} ms {median('own') / step:8.2%}")
    print(
        f"{'snapshots, over all steps':<36}{median('snapshot') / STEPS * 1e3:8.3f} ms {median('snapshot') / step:8.2%}"
    )
    print(f"{'a survivor writes':<36}{median('written') * 1e3:8.2f} ms")
    print(f"{'the next attempt agrees and reads':<36}{median('resume') * 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
