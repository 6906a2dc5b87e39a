"""A run joins the group of ranks, trains, and writes the report; a dry run makes two steps and leaves no files."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from typing import Any

from trainloop.config import Config
from trainloop.distributed.preflight import check
from trainloop.distributed.world import environment, has_agent, joined
from trainloop.recovery.room import container_memory
from trainloop.resources import memory
from trainloop.trainer import Trainer

DRY_STEPS = 2


def train(config: Config) -> bool:
    """Trains; returns whether the run was stopped before its end."""
    if has_agent():
        from trainloop.distributed.diagnostics import dump_stacks_on_signal

        dump_stacks_on_signal(environment()[0])
    join: Any = joined
    make: Any = Trainer
    if "TRAINMASTER_GROUP_FILE" in os.environ:
        from trainloop.continued.trainer import ways  # for a group that outlives its ranks

        join, make = ways(config)
    with join(config.distributed, partial(check, config.preflight, config.fingerprint())) as world:
        if has_agent():
            from trainloop.distributed.diagnostics import announce

            announce(world.device, world.rank, world.local_rank)
        trainer = make(config, world)
        stopped: bool = trainer.run()
        if world.is_main and not stopped:
            if config.metrics.plot:
                from trainloop.report import closing_line

                trainer.log.info(closing_line(trainer.report_path, config.metrics.against))
            trainer.log.info(f"finished {trainer.state.step} steps; metrics: {trainer.log.file}")
    return stopped


def dry_run(config: Config) -> None:
    """Makes two steps and evaluates one batch without leaving files; prints memory use and the duration of a step."""
    with tempfile.TemporaryDirectory() as folder:
        anew = {"path": folder, "resume": False, "start_from": None, "storage": "shared"}
        checkpoint = config.checkpoint.model_copy(update=anew)
        metrics = config.metrics.model_copy(update={"path": folder, "prometheus_file": None})
        evaluation = config.evaluation.model_copy(update={"samples": config.evaluation.batch})
        config = config.model_copy(update={"checkpoint": checkpoint, "metrics": metrics, "evaluation": evaluation})
        with joined(config.distributed) as world:
            trainer = Trainer(config, world)
            trainer.prepare()
            for _ in range(DRY_STEPS):
                began = time.perf_counter()  # overwritten by the last step, because the first step also warms up
                trainer.train_step()
            seconds = time.perf_counter() - began
            trainer.evaluate()
            peaks = {name: value / 2**30 for name, value in memory(world.device).items()}
            host = f"peak memory {peaks['hostMemory']:.2f} GiB"
            if container := container_memory():
                host += f" of the container's {container[0] / 2**30:.2f}"
            device = f", on the device {peaks['peakMemory']:.2f} GiB" if "peakMemory" in peaks else ""
            trainer.log.info(f"dry run: {seconds:.3f} s a step, {host}{device}, {trainer.state.total} steps in all")
