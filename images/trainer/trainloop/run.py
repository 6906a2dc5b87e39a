"""A run joins the ranks, trains, and draws the curves."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from trainloop.config import Config
from trainloop.distributed.preflight import check
from trainloop.distributed.world import environment, has_agent, joined
from trainloop.trainer import Trainer


def train(config: Config) -> bool:
    """Train; returns whether the run was stopped before its end."""
    if has_agent():
        from trainloop.distributed.diagnostics import dump_stacks_on_signal

        dump_stacks_on_signal(environment()[0])
    join: Any = joined
    make: Any = Trainer
    if "TRAINMASTER_GROUP_FILE" in os.environ:
        from trainloop.continued import ways  # with a group that outlives its ranks

        join, make = ways(config)
    with join(config.distributed, partial(check, config.preflight, config.fingerprint())) as world:
        if has_agent():
            from trainloop.distributed.machine import announce

            announce(world.device, world.rank, world.local_rank)
        trainer = make(config, world)
        stopped: bool = trainer.run()
        if world.is_main and not stopped:
            if config.metrics.plot:
                from trainloop.report import closing_line

                trainer.log.info(closing_line(trainer.report_path, config.metrics.against))
            trainer.log.info(f"finished {trainer.state.step} steps; metrics: {trainer.log.file}")
    return stopped
