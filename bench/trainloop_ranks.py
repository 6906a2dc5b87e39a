"""Measures the extra cost of two ranks over two unconnected processes, and the all-reduce's part in it.

Three interleaved measurements use the same model and samples a rank: two unconnected ranks, which share the machine as
two connected ranks would; two ranks with DDP; and two ranks that only all-reduce as many bytes as the gradient has. The
rest is DDP's and the loop's own cost.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, ROUNDS, PER_RANK = 30, 4, 32
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "trainloop.run"])


def _step_time(variables: dict[str, str], folder: str, out: Path) -> None:
    """Returns the median seconds of a training step of this rank."""
    os.environ.update(variables)
    import torch

    from trainloop.config import parse_config
    from trainloop.distributed.world import joined
    from trainloop.trainer import Trainer

    # This process is forked from a server that has already read OMP_NUM_THREADS.
    torch.set_num_threads(1)
    config = parse_config(
        {
            "task": {"name": "reviews"},
            "steps": STEPS,
            "batch": {"per_rank": PER_RANK},
            "metrics": {"path": folder, "every_steps": STEPS, "plot": False},
        }
    )
    with joined(config.distributed) as world:
        trainer = Trainer(config, world)
        trainer.log.quiet = True
        trainer.prepare()
        times = []
        for _ in range(STEPS):
            began = time.perf_counter()
            trainer.train_step()
            times.append(time.perf_counter() - began)
        out.write_text(repr((statistics.median(times[5:]), trainer.exchange.times.sent)))


def _all_reduce_time(variables: dict[str, str], numbers: int, out: Path) -> None:
    """Returns the median seconds of an all-reduce of `numbers` floats."""
    os.environ.update(variables)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor, times = torch.ones(numbers), []
    for _ in range(STEPS):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
    out.write_text(repr((statistics.median(times[5:]), 0)))
    dist.barrier()


def together(target: Any, argument: Any, joint: bool) -> tuple[float, int]:
    """Runs two processes at once, as two ranks or unconnected; returns the slower one's seconds, and the sent bytes."""
    port = random.SystemRandom().randrange(15000, 28000)
    with tempfile.TemporaryDirectory() as folder:
        outs, processes = [Path(folder) / str(rank) for rank in range(2)], []
        for rank, out in enumerate(outs):
            place = {"RANK": str(rank if joint else 0), "WORLD_SIZE": "2" if joint else "1", "LOCAL_RANK": "0"}
            more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            processes.append(_CONTEXT.Process(target=target, args=({**place, **more}, argument or folder, out)))
            processes[-1].start()
        for process in processes:
            process.join(120)
        answers = [tuple(map(float, out.read_text().strip("()").split(","))) for out in outs]
    return max(seconds for seconds, _ in answers), int(answers[0][1])


def main() -> None:
    """Measures, and prints the results."""
    rows: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        alone, _ = together(_step_time, None, joint=False)
        ranks, sent = together(_step_time, None, joint=True)
        # In a ring of two, each rank sends each number once.
        reduce, _ = together(_all_reduce_time, sent // 4, joint=True)
        rows.append((alone, ranks, reduce))
    alone, ranks, reduce = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{PER_RANK} samples each a step, {sent / 2**20:.1f} MiB of gradients; medians of {ROUNDS} rounds, ms")
    print(f"alone, side by side        {alone * 1000:8.1f}")
    print(f"all-reduce alone           {reduce * 1000:8.1f}")
    print(f"two ranks                  {ranks * 1000:8.1f}")
    print(f"two ranks / sum of both    {ranks / (alone + reduce):8.2f}   (below 1: backward hides some)")


if __name__ == "__main__":
    main()
