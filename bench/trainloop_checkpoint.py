"""Measures how long training pauses for a checkpoint, and how long loading takes.

The state is random numbers in the tensors of an Adam run (weights and two moments). `sync` waits for write, SHA-256,
fsync and rename, and `thread` only for the copy in memory. The first save by a thread also allocates that memory, so it
is shown separately. Goal: a pause with `thread` takes under 10 % of the pause with `sync`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from trainloop.checkpoints import retention, saving, storage
from trainloop.checkpoints.saving import WritingThread

MIB = 384
ROUNDS = 4
MODES: tuple[Literal["sync", "thread"], ...] = ("sync", "thread")


def state_of(mebibytes: int) -> dict[str, Any]:
    """Returns weights and Adam's moments, in all `mebibytes` MiB, in tensors of 4 MiB."""
    count = mebibytes // 12
    return {
        kind: {f"layer{index}": torch.randn(1 << 20) for index in range(count)} for kind in ("model", "first", "second")
    }


def stalls(mode: Literal["sync", "thread"], state: dict[str, Any], folder: Path) -> tuple[list[float], float]:
    """Returns the seconds that each `save` blocked its caller, and the median until all data was on the disk."""
    thread = WritingThread() if mode == "thread" else None
    stalled, whole = [], []
    for step in range(1, ROUNDS + 1):
        began = time.perf_counter()
        written = thread.save(folder, step, state, {}) if thread else partial(saving.write, folder, step, state, {})
        checkpoint = None if thread else written()
        stalled.append(time.perf_counter() - began)
        checkpoint = checkpoint or written()
        whole.append(time.perf_counter() - began)
        retention.prune(checkpoint, storage.survey(folder), 1)
    if thread:
        thread.close()
    return stalled, statistics.median(whole)


def main() -> None:
    """Measures, and prints the results."""
    torch.set_num_threads(1)
    state = state_of(MIB)
    gibibytes = MIB / 1024
    print(f"a state of {MIB} MiB, median of {ROUNDS - 1} saves after the first, seconds")
    print(f"{'mode':<9}{'stall':>8}{'of sync':>9}{'first':>8}{'on disk after':>15}")
    base = 0.0
    with tempfile.TemporaryDirectory() as name:
        for mode in MODES:
            folder = Path(name) / mode
            stalled, whole = stalls(mode, state, folder)
            stall = statistics.median(stalled[1:])
            base = base or stall
            print(f"{mode:<9}{stall:>8.3f}{stall / base:>9.1%}{stalled[0]:>8.3f}{whole:>15.3f}")
        [newest] = storage.complete(Path(name) / "sync")
        began = time.perf_counter()
        assert storage.verify(newest.path) is None
        verified = time.perf_counter() - began
        began = time.perf_counter()
        storage.load(newest)
        print(f"verify {verified / gibibytes:.2f} s/GiB, load {(time.perf_counter() - began) / gibibytes:.2f} s/GiB")


if __name__ == "__main__":
    main()
