"""Ranks that write down when they had done each step: a hook for trainloop, and a plain DDP script.

`STEPS_FILE` is one file of this machine for all ranks; a line is short enough to be written whole by O_APPEND.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

# A model of a few milliseconds a step would leave four ranks on two cores no time to breathe.
PAUSE = 0.03


def write_down(step: int) -> None:
    """Writes down that this rank has done a step now."""
    attempt, rank = os.environ["TRAINMASTER_ATTEMPT"], os.environ["RANK"]
    line = f"{time.time():.4f} {attempt} {rank} {os.getpid()} {step}\n".encode()
    file = os.open(os.environ["STEPS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)


def hook(trainer: Trainer) -> None:
    """Has a trainer write down each step (`hooks: [bench.clusters.stepping_ranks:hook]`)."""

    def stepped(trainer: Trainer) -> None:
        write_down(trainer.state.step)
        time.sleep(PAUSE)

    trainer.after_step.append(stepped)
