"""Measure the fixed cost of a step of trainloop over a bare loop, in ms per step, for models of several sizes.

The bare loop is written by hand with the same model, data and optimizer: collate, forward, backward, clip, step. With
two ranks it uses plain DistributedDataParallel and judges nothing. The two loops alternate, round by round, in the same
processes. The table shows medians of the rounds, and the cost is the median of the rounds' differences. CPU time is
printed beside wall time, because other programs on the machine don't affect it. On a GPU there are two models, one that
is limited by the host and one that keeps the GPU busy, with one rank and the default precision. Goal: under 0.1 ms, and
under 1 % at 20 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

ROUNDS = 10
#: Width and layers of the models, and steps of a round, by the milliseconds of a step on one core.
SIZES = {1: (64, 4, 200), 5: (256, 10, 40), 20: (512, 12, 12), 70: (1024, 11, 4)}
#: The same values for a GPU. Model 0 keeps the host busy, and model 1 the GPU (0.4 billion parameters).
GPU_SIZES = {0: (64, 4, 200), 1: (4096, 24, 40)}
BATCH, LR, MAX_NORM = 32, 1e-4, 0.5
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "trainloop.run"])

#: Wall and CPU seconds.
Times = tuple[float, float]


class Regression:
    """Regression is a task in which a tower of linear layers learns random numbers."""

    evaluation = None

    def __init__(self, options: dict[str, Any]) -> None:
        import torch

        self.width, self.layers = options["width"], options["layers"]
        generator = torch.Generator().manual_seed(0)
        self.train = list(torch.randn(1024, 2, self.width, generator=generator))

    def model(self) -> Any:
        from torch import nn

        layers = [module for _ in range(self.layers) for module in (nn.Linear(self.width, self.width), nn.Tanh())]
        return nn.Sequential(*layers)

    def collate(self, samples: list[Any]) -> dict[str, Any]:
        import torch

        pairs = torch.stack(samples)
        return {"x": pairs[:, 0], "y": pairs[:, 1]}

    def count(self, batch: Any) -> int:
        return len(batch["x"])

    def loss(self, model: Any, batch: Any) -> Any:
        return (model(batch["x"]) - batch["y"]).square().sum()

    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {}

    def results(self, sums: Any) -> dict[str, float]:
        return {}


def bare_loop(task: Any, settings: Any, world: Any) -> Callable[[], None]:
    """Returns the simplest step, without checks, metrics and checkpoints."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from trainloop.optimization.optimizer import chosen
    from trainloop.optimization.precision import computes_in_bf16

    ranks, rank, device = world.size, world.rank, world.device
    model, bf16 = task.model().to(device), computes_in_bf16(device)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
    optimizer = chosen(model, settings)  # fused, and two groups
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0)).tolist()[rank::ranks]
    start = 0

    def step() -> None:
        nonlocal start
        batch = task.collate([task.train[index] for index in order[start : start + BATCH]])
        start = (start + BATCH) % (len(order) - BATCH)
        if device.type != "cpu":
            batch = {name: one.pin_memory().to(device, non_blocking=True) for name, one in batch.items()}
        with torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext():
            loss = task.loss(wrapped, batch) / BATCH
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], object], steps: int) -> Times:
    """Returns a step's mean wall and CPU seconds in a round."""
    import torch

    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def measure(variables: dict[str, str], size: tuple[int, int, int], folder: str, results: Any) -> None:
    """Measures in this rank. Rank 0 sends the rounds' times of the bare loop and of trainloop."""
    os.environ.update(variables)
    os.environ["TRAINMASTER_PROGRESS_FILE"] = f"{folder}/progress"
    import torch

    from trainloop.config import parse_config
    from trainloop.distributed.world import joined
    from trainloop.tasks import build_task
    from trainloop.trainer import Trainer

    # This process is forked from a server that has already read OMP_NUM_THREADS.
    torch.set_num_threads(1)
    width, layers, steps = size
    config = parse_config(
        {
            "task": {"name": "bench.trainloop_step:Regression", "options": {"width": width, "layers": layers}},
            "steps": 1_000_000,
            "batch": {"per_rank": BATCH},
            "optimizer": {"lr": LR, "max_norm": MAX_NORM},
            "schedule": {"kind": "constant"},
            "metrics": {"path": folder, "every_steps": 10, "plot": False},
        }
    )
    task, rounds = build_task(config.task), []
    with joined(config.distributed) as world:
        trainer = Trainer(config, world, task)
        trainer.log.quiet = True
        trainer.prepare()
        bare, ours = bare_loop(task, config.optimizer, world), trainer.train_step
        timed(bare, steps), timed(ours, max(steps, 80))  # until every accepted step is judged by its history
        for number in range(ROUNDS):
            # The order alternates, so that warm caches don't always help the same loop.
            pair = [bare, ours] if number % 2 else [ours, bare]
            times = {step: timed(step, steps) for step in pair}
            rounds.append((times[bare], times[ours]))
    if world.is_main:
        results.put(rounds)


def rounds_of(ranks: int, size: tuple[int, int, int]) -> list[tuple[Times, Times]]:
    """Returns the rounds' times of the bare loop and of trainloop, measured in separate processes."""
    results, port = _CONTEXT.Queue(), random.SystemRandom().randrange(15000, 28000)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "1"}
            processes.append(_CONTEXT.Process(target=measure, args=(variables, size, folder, results)))
            processes[-1].start()
        rounds: list[tuple[Times, Times]] = results.get(timeout=300)
        for process in processes:
            process.join(60)
    return rounds


def main() -> None:
    """Measures, and prints the results."""
    import torch

    gpu = torch.accelerator.is_available()
    sizes = GPU_SIZES if gpu else SIZES
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1] if gpu else [1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(sizes), choices=list(sizes))
    options = parser.parse_args()
    if gpu:
        print(torch.get_device_module().get_device_name())
    print(f"medians of {ROUNDS} rounds, ms a step")
    print(f"{'ranks':>5}{'model':>7}{'time':>6}{'by hand':>10}{'trainloop':>11}{'cost':>8}{'':>7}   rounds' cost")
    for ranks in options.ranks:
        for size in options.sizes:
            model = ("host", "GPU")[size] if gpu else f"{size} ms"
            rounds = rounds_of(ranks, sizes[size])
            for index, kind in enumerate(("wall", "CPU")):
                by_hand = statistics.median(bare[index] for bare, _ in rounds) * 1000
                ours = statistics.median(loop[index] for _, loop in rounds) * 1000
                costs = sorted((loop[index] - bare[index]) * 1000 for bare, loop in rounds)
                cost = statistics.median(costs)
                print(
                    f"{ranks:>5}{model:>7}{kind:>6}{by_hand:>10.3f}{ours:>11.3f}{cost:>8.3f}{cost / by_hand:>7.1%}   "
                    f"{costs[0]:.3f} to {costs[-1]:.3f}",
                    flush=True,
                )
    print("goal: under 0.100 ms, and under 1 % at 20 ms")


if __name__ == "__main__":
    main()
