"""Ranks that write down when they had done each step: a hook for trainloop, and a plain DDP script.

The script is this file, run as one: `bench.programs.parts` with Adam, whose state `trainloop.recovery` keeps. With
`SHARED` in the environment it asks `recovery.parts` which micro-batches are a rank's, so that it can continue without a
rank that is lost. `STEPS_FILE` is one file of this machine for all ranks; a line is short enough to be written whole by
O_APPEND.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.programs.parts import PARTS, PAUSE, await_turn, loss_of, network, own_parts

if TYPE_CHECKING:
    from trainloop.loader import Fetched
    from trainloop.trainer import Trainer


def attempt() -> int:
    """Returns the attempt that this rank's group is of, 0 while it is in none; under torchrun it is its round."""
    from trainloop.continuing.start import continuing

    group = continuing()
    if group is not None:
        return group.attempt
    return int(os.environ.get("TRAINMASTER_ATTEMPT") or 1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"]))


def write_down(
    step: int,
    group: int | None = None,
    parts: int = 1,
    whole: int = 1,
    *,
    rank: int | None = None,
    at: float | None = None,
) -> None:
    """Writes down that this rank has done a step, now if not `at` another time, in which group of ranks, and how many
    of the step's micro-batches or samples were its own.
    """
    at = time.time() if at is None else at
    group = attempt() if group is None else group
    rank = int(os.environ["RANK"]) if rank is None else rank
    line = f"{at:.4f} {group} {rank} {os.getpid()} {step} {parts} {whole}\n".encode()
    file = os.open(os.environ["STEPS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)


def hook(trainer: Trainer) -> None:
    """Has a trainer write down each step (`hooks: [bench.programs.stepping_ranks:hook]`), and pause in it as the
    script's ranks do: longer with more samples.
    """
    fetch: Callable[[], Fetched] | None = None
    own = whole = 1

    def fetched() -> Fetched:
        nonlocal own, whole
        assert fetch is not None
        found = fetch()
        own, whole = found.step.samples, found.step.all_samples
        time.sleep(PAUSE * trainer.world.size * own / whole)
        return found

    def begins(trainer: Trainer) -> None:
        nonlocal fetch
        if fetch is None:
            # The loader isn't there yet when hooks are called.
            fetch = trainer.loader.fetch
            trainer.loader.fetch = fetched  # type: ignore[method-assign]

    def made(trainer: Trainer) -> None:
        write_down(trainer.state.step, None, own, whole)

    trainer.before_step.append(begins)
    trainer.after_step.append(made)


def main() -> None:
    """Trains until it is ended, or, with `STOPS` in the environment, until the file `$STEPS_FILE.stop` is there."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from trainloop.recovery import Recovery

    if "WITHOUT_MEMORY" in os.environ:
        os.environ.pop("TRAINMASTER_MEMORY_DIR", None)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recovery = Recovery(model, optimizer, every=int(os.environ["CHECKPOINT_STEPS"]), rehearsal=True)
    print("joined", attempt(), rank, os.getpid(), time.time(), flush=True)
    done: dict[str, Any] = {"step": 0}
    for step in recovery.steps(1_000_000):
        # A step that a fault has cut off comes again. A rank that is about to join is in no group: it rehearses.
        if done["step"] == step - 1 > 0 and done["group"]:
            write_down(**done)
        await_turn()
        group, parts, total = attempt(), 0, 0.0
        for part in recovery.parts(PARTS) if "SHARED" in os.environ else own_parts(model, rank, size):
            loss = loss_of(model, step, part, size)
            loss.backward()
            total, parts = total + loss.item(), parts + 1
        optimizer.step()
        optimizer.zero_grad()
        recovery.report(loss=total)
        done = {"step": step, "group": group, "parts": parts, "whole": PARTS, "at": time.time()}
        if "STOPS" in os.environ:
            stop = torch.tensor(float(Path(os.environ["STEPS_FILE"] + ".stop").exists()))
            dist.all_reduce(stop)
            if stop:
                break


if __name__ == "__main__":
    main()
