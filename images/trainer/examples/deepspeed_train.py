"""DeepSpeed trains with a `ds_config.json`, started by torchrun (never by the `deepspeed` launcher inside it).

    deepspeed_train.py --config training.yaml --deepspeed ds_config.json

Task, data order, seed and length come from trainloop's configuration, so that runs can be compared with trainloop's
own; the engine, its optimizer and ZeRO come from DeepSpeed. `train_batch_size` of the file is the global batch: each
rank's share is recomputed for the number of ranks that there are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from trainloop import seeding
from trainloop.config import Config, load_config
from trainloop.data import Sampler
from trainloop.distributed.device import choose_backend, choose_device
from trainloop.distributed.world import environment
from trainloop.errors import ConfigError
from trainloop.loader import on_device
from trainloop.progress import Progress
from trainloop.tasks import build_task


def batch_sizes(document: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Returns `ds_config.json` for this number of ranks: the global batch stays, micro-batch and accumulation follow.

    DeepSpeed requires train_batch_size = micro-batch x accumulation x ranks, and a file written for eight ranks fails
    with three. Raises ConfigError when the batch can't be shared out evenly, which DeepSpeed needs.
    """
    total = document.get("train_batch_size")
    if not isinstance(total, int) or total < 1:
        raise ConfigError(f"train_batch_size is {total!r} in ds_config.json: set it to the samples in a step")
    if total % ranks:
        raise ConfigError(f"train_batch_size is {total}: {ranks} ranks can't share it, use a multiple of {ranks}")
    share = total // ranks
    most = document.get("train_micro_batch_size_per_gpu", share)
    micro = next(size for size in range(min(most, share), 0, -1) if share % size == 0)
    return {**document, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": share // micro}


def train(config: Config, document: dict[str, Any], double: bool = False) -> torch.nn.Module:
    """Train with DeepSpeed; returns the model, whole on every rank with ZeRO stages 0 to 2."""
    import deepspeed

    rank, size, local_rank, local_size = environment()
    device = choose_device(config.distributed.device, local_rank)
    if device.type == "cpu":
        # An extension for the ranks of one host, which here is one worker of many. DeepSpeed would compile it at every
        # start (half a minute), and end where the image has no compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=choose_backend(config.distributed.backend, device))
    document = batch_sizes(document, size)
    task = build_task(config.task)
    progress = Progress.from_environment(rank, local_size)
    seeding.seed_all(config.seed.value, seeding.MODEL)
    model = task.model().to(torch.float64 if double else torch.float32)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=document)
    total, micro = document["train_batch_size"], document["train_micro_batch_size_per_gpu"]
    # Whole batches only: DeepSpeed divides by its own batch size, so a smaller last one would be weighted wrong.
    length = len(task.train) // total * total
    sampler = Sampler(length, total, micro, config.seed.value, equal_passes=True)
    steps = config.steps or sampler.steps_in(config.epochs or 0)
    order = sampler.steps(0, {"epoch": 0, "done": 0}, rank, lambda: [1.0] * size)
    progress.enter("train")
    for step in range(1, steps + 1):
        for indices in next(order).micro:
            batch = on_device(task.collate([task.train[index] for index in indices]), device)
            loss = task.loss(engine, batch) / task.count(batch)
            engine.backward(loss)
            engine.step()
        progress.step(step, totalSteps=steps, loss=loss.item())
        if rank == 0 and (step % config.metrics.every_steps == 0 or step == steps):
            print(f"step {step}/{steps}  loss {loss.item():.4f}", flush=True)
    progress.enter("finish")
    torch.distributed.barrier()
    trained: torch.nn.Module = engine.module
    return trained


def main() -> int:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="Read task, seed and length from trainloop's YAML")
    parser.add_argument("--deepspeed", type=Path, required=True, help="Read this ds_config.json")
    options = parser.parse_args()
    try:
        train(load_config(options.config), json.loads(options.deepspeed.read_text()))
    except ConfigError as error:
        print(f"deepspeed_train: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
