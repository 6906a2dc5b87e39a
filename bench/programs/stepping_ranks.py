"""Records the time of each step: a hook for trainloop, and a plain DDP script.

If run as a script, this file trains `bench.programs.parts` with Adam, and `trainloop.recovery` keeps the state. With
`SHARED` in the environment `recovery.parts` decides which micro-batches a rank computes, so that ranks can continue
without a lost rank. All ranks append to one file, `STEPS_FILE`. A line is so short that O_APPEND writes it at once.
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
    """Returns the attempt of this rank's group (0 if it is in none), or under torchrun the round."""
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
    """Records that this rank did a step, now or `at` a time, in a group, with `parts` of `whole` micro-batches."""
    at = time.time() if at is None else at
    group = attempt() if group is None else group
    rank = int(os.environ["RANK"]) if rank is None else rank
    line = f"{at:.4f} {group} {rank} {os.getpid()} {step} {parts} {whole}\n".encode()
    file = os.open(os.environ["STEPS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)


def hook(trainer: Trainer) -> None:
    """Makes a trainer record each step, and pause as the script's ranks do, longer with more samples.

    It is set by `hooks: [bench.programs.stepping_ranks:hook]`.
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
            # The loader doesn't exist yet when hooks are called.
            fetch = trainer.loader.fetch
            trainer.loader.fetch = fetched  # type: ignore[method-assign]

    def made(trainer: Trainer) -> None:
        write_down(trainer.state.step, None, own, whole)

    trainer.before_step.append(begins)
    trainer.after_step.append(made)


def main() -> None:
    """Trains until killed, or, with `STOPS` in the environment, until the file `$STEPS_FILE.stop` exists."""
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
        # A step that a fault has interrupted is repeated. A rank that is about to join rehearses steps in no group.
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
