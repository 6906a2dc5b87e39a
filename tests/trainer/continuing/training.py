"""A run's state is a hash of its history, so a run that leaves out a step, or makes one twice, ends differently.

Each step sums the contributions of all parts. The present ranks share the parts, so the sum, and so the history, is
always the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.trainer.continuing.worlds import World

_MODULUS = 1_000_000_007


def contribution(step: int, part: int) -> int:
    return (step * 7919 + part * 104_729 + 1) % 1_000_003


def history(steps: int, size: int) -> int:
    """Returns the state of an undisturbed run after this many steps."""
    state = 1
    for step in range(1, steps + 1):
        state = _after(state, sum(contribution(step, part) for part in range(size)))
    return state


def _after(state: int, total: int) -> int:
    return (state * 31 + total) % _MODULUS


def train(steps: int, seconds: float = 0.0, ballast: int = 0) -> int:
    """Train as a rank that makes `steps` steps, of a given number of seconds; `ballast` is bytes of state. Returns the
    last state.
    """
    import torch
    import torch.distributed as dist

    from trainloop.continuing.membership import NO_STATE
    from trainloop.continuing.start import continuing

    folder = os.environ["WORLD_FOLDER"]
    dist.init_process_group("gloo")
    ours = continuing()
    assert ours is not None
    ours.able = True
    log = os.open(f"{folder}/steps-{ours.rank}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    extra = torch.full((ballast,), ours.rank, dtype=torch.uint8)
    made, state = (NO_STATE, 0) if ours.joins else (0, 1)

    def give() -> Any:
        Path(f"{folder}/gives-{ours.rank}").touch()
        return {"step": made, "state": state, "extra": extra}

    def load(given: Any) -> None:
        nonlocal made, state
        made, state = given["step"], given["state"]
        extra.copy_(given["extra"])

    if ours.joins:
        Path(f"{folder}/ready-{ours.rank}").touch()
        ours.form(made, give, load)
    while made < steps:
        present = ours.present
        mine = [part for part in range(ours.size) if present[part % len(present)] == ours.rank]
        time.sleep(seconds)
        total = torch.tensor([sum(contribution(made + 1, part) for part in mine)])
        known = torch.tensor([ours.membership.known])
        dist.all_reduce(total)
        dist.all_reduce(known, op=dist.ReduceOp.MAX)
        if not ours.broken:
            made, state = made + 1, _after(state, int(total))
            os.write(log, f"{made} {ours.attempt} {time.monotonic()}\n".encode())
        if ours.broken or int(known) > ours.attempt:
            ours.form(made, give, load)
    return state


def logged(made: World, rank: int) -> list[list[tuple[int, int, float]]]:
    """Returns the steps that each of this rank's processes has made, as (step, attempt, time)."""
    processes = list[list[tuple[int, int, float]]]()
    for file in made.folder.glob(f"steps-{rank}-*"):
        rows = [line.split() for line in file.read_text().splitlines()]
        processes.append([(int(step), int(attempt), float(when)) for step, attempt, when in rows])
    return processes


def reaches(made: World, rank: int, step: int = 0, attempt: int = 0, seconds: float = 60) -> float:
    """Wait for a rank's first step that is at least `step`, in an attempt that is at least `attempt`; returns
    its time.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        times = [when for rows in logged(made, rank) for number, of, when in rows if number >= step and of >= attempt]
        if times:
            return min(times)
        time.sleep(0.005)
    raise AssertionError(f"rank {rank} has made no step from {step} on in attempt {attempt}")


def ready(made: World, rank: int, seconds: float = 60) -> None:
    """Wait until a joining rank is ready."""
    mark = made.folder / f"ready-{rank}"
    until = time.monotonic() + seconds
    while not mark.exists():
        assert time.monotonic() < until, f"rank {rank} isn't ready to join"
        time.sleep(0.005)
    mark.unlink()
