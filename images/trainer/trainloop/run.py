"""A run from the outside: join the ranks, train, draw the curves."""

from __future__ import annotations

import resource
import tempfile
import time

import torch

from trainloop.config import Config, dump_config
from trainloop.distributed import joined
from trainloop.preflight import checker, fingerprint
from trainloop.report import write_report
from trainloop.tasks import task_module
from trainloop.trainer import Trainer

DRY_STEPS = 2


def train(config: Config) -> bool:
    """Train; whether the run was stopped before its end."""
    mine = fingerprint(dump_config(config), task_module(config.task))
    with joined(config.distributed, checker(config.preflight, mine)) as world:
        trainer = Trainer(config, world)
        outcome = trainer.run()
        if world.is_main and not outcome.stopped:
            if config.metrics.plot and (page := write_report(trainer.report_path)):
                trainer.log.say(f"report with curves: {page}")
            trainer.log.say(f"finished {outcome.step} steps; metrics: {trainer.log.file}")
    return outcome.stopped


def dry_run(config: Config) -> None:
    """Build everything and make two steps without leaving a file, then say what a step takes."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "checkpoint": config.checkpoint.model_copy(update={"path": folder, "resume": False, "storage": "shared"}),
            "metrics": config.metrics.model_copy(update={"path": folder, "prometheus_file": None}),
        }
        config = config.model_copy(update=changes)
        with joined(config.distributed) as world:
            trainer = Trainer(config, world)
            trainer.prepare()
            began = time.perf_counter()
            for _ in range(DRY_STEPS):
                trainer.train_step()
            seconds = (time.perf_counter() - began) / DRY_STEPS
            said = f"{seconds:.3f} s a step, {_peak(world.device)}, {trainer.state.total} steps in all"
            trainer.log.say(f"dry run: {said}")


def _peak(device: torch.device) -> str:
    if device.type == "cuda":
        return f"peak device memory {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB"
    # ru_maxrss is in KiB on Linux.
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
