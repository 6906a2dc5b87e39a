"""Keeps a state in memory or resumes from it, and prints JSON: `python -m bench.programs.gpu_state measure|load SIZES`.

`measure` trains one model alternately with `Recovery` and by hand, and times each step on the device. Steps during a
snapshot are counted separately: their extra time is the snapshot's cost. At the end the state is written, as by any
script that ends early, and `load` resumes from this state in a separate process. Both find the memory by the variables
that an agent sets.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
import warnings
from typing import Any

import torch

from bench.programs.gpu_ranks import tower
from trainloop.recovery import Recovery

#: Steps from a snapshot's beginning that count as during the snapshot, on a GPU; and steps before timing begins.
BESIDE, WARM_UP = 25, 20
#: Steps that count as during a snapshot on a CPU, where steps can be long.
BESIDE_ON_CPU = 4
#: Number of steps whose synchronisations are counted.
WATCHED = 8


class Clock:
    """Clock records when steps begin on the device, or on a CPU by the time."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def durations(self, begins: list[Any]) -> list[float]:
        """Returns the seconds from each beginning to the next, once the device has finished them."""
        self.synchronize()
        pairs = itertools.pairwise(begins)
        return [before.elapsed_time(after) / 1e3 if self._on_gpu else after - before for before, after in pairs]

    def synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


class Training:
    """Training is one model, trained with `Recovery` and by hand."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.clock = Clock(self.device)
        torch.manual_seed(0)
        self.model = tower(sizes["layers"], sizes["width"], self.device)
        self._statistics = self._register(sizes.get("buffers", ""))
        self._points = torch.randn(sizes["batch"], sizes["width"], device=self.device)
        self._ours, self._by_hand = (torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True) for _ in range(2))
        self._steps = Recovery(self.model, self._ours)
        self.snapshots = self._steps._keeper._snapshots if self._steps._keeper is not None else None
        self._numbers = self._steps.steps(1 << 40)

    def _register(self, buffers: str) -> list[torch.Tensor]:
        """Adds buffers to the model; returns the buffers that each step changes."""
        if buffers == "mask":
            self.model.register_buffer("mask", torch.ones(12, 1024, 1024, dtype=torch.bool, device=self.device))
        for number in range(53 if buffers == "statistics" else 0):
            for name, value in (("mean", torch.zeros(256)), ("variance", torch.ones(256)), ("count", torch.zeros(()))):
                self.model.register_buffer(f"{name}{number}", value.to(self.device))
        return [each for name, each in self.model.named_buffers() if name != "mask"]

    def by_hand(self) -> None:
        """Makes a step without keeping the state."""
        self._step(self._by_hand)

    def ours(self) -> None:
        """Ends the previous step, and makes a step whose state is kept."""
        next(self._numbers)
        self._step(self._ours)

    def resume(self) -> int:
        """Continues from the state in memory. Returns the first step's number."""
        return next(self._numbers)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = (self.model(self._points).float() - self._points).square().mean()
        if self._statistics:
            # Batch normalisation changes its buffers like this in each forward pass.
            torch._foreach_add_(self._statistics, 1.0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def checksum(self) -> int:
        """Returns a number that differs if the weights differ."""
        sums = (each.detach().view(torch.int32).sum(dtype=torch.int64) for each in self.model.parameters())
        return sum(int(each) * (number + 1) for number, each in enumerate(sums))


def measure(training: Training, seconds: float) -> dict[str, Any]:
    """Returns the cost of keeping the state, alternating with the loop by hand for this many seconds."""
    clock, snapshots = training.clock, training.snapshots
    if snapshots is None:
        raise RuntimeError("no state is kept in memory")
    begun: list[float] = []
    asked: list[float] = []
    true_make = snapshots.make

    def make(*arguments: Any) -> None:
        true_make(*arguments)
        # Otherwise no snapshot began: it has asked the other ranks, or postponed the first snapshot.
        (asked if snapshots._next else begun).append(time.monotonic())

    snapshots.make = make
    training.ours()
    clock.synchronize()
    began = time.perf_counter()
    training.ours()  # memory is made, and pinned, after the first step
    first, window = time.perf_counter() - began, BESIDE if training.device.type == "cuda" else BESIDE_ON_CPU
    for step in (training.ours, training.by_hand):
        for _ in range(WARM_UP):
            step()
    ours: list[float] = []
    by_hand: list[float] = []
    hosts: list[float] = []
    beside: list[dict[str, float]] = []
    # Snapshots are seconds apart, so the loop that keeps the state gets most of the time.
    until, block = time.monotonic() + seconds, min(2.0, seconds / 5)
    while time.monotonic() < until:
        bare = statistics.mean(_block(training.by_hand, clock, block / 4))
        # For each step: whether a snapshot began in the step, and the host's time for the step.
        made: list[tuple[bool, float]] = []

        def step(made: list[tuple[bool, float]] = made) -> bool:
            known, host = len(begun), time.perf_counter()
            training.ours()
            made.append((len(begun) > known, time.perf_counter() - host))
            return not any(begins for begins, _ in made[-window:])

        durations = _block(step, clock, block)
        # `durations` doesn't contain the first step.
        starts = [number - 1 for number, (begins, _) in enumerate(made) if begins]
        near = {number for start in starts for number in range(start, start + window)}
        ordinary = [each for number, each in enumerate(durations) if number not in near]
        host = [seconds for number, (_, seconds) in enumerate(made[1:]) if number not in near]
        if not ordinary:
            continue
        by_hand.append(bare)
        ours.append(statistics.mean(ordinary))
        hosts.append(statistics.median(host))
        middle = statistics.median(ordinary)
        for start in (each for each in starts if each >= 0):
            longer = [each - middle for each in durations[start : start + window]]
            beside.append({"host": made[start + 1][1] - hosts[-1], "longest": max(longer), "all": sum(longer)})
    # The first gap is left out, because the first steps were slower than later ones.
    gaps = [after - before for before, after in itertools.pairwise(begun)]
    return {
        "first": first,
        "ours": ours,
        "byHand": by_hand,
        "snapshots": beside,
        "every": gaps[1:] or gaps,
        "synchronizations": _synchronizations(training, begun, asked),
        "checksum": training.checksum(),
    }


def _block(step: Any, clock: Clock, seconds: float) -> list[float]:
    """Makes steps for this many seconds, and until `step` doesn't return False. Returns each step's seconds.

    The first step, which begins with nothing queued, isn't included.
    """
    clock.synchronize()
    begins, until = [clock.now()], time.monotonic() + seconds
    while True:
        settled = step()
        begins.append(clock.now())
        if settled is not False and len(begins) > 3 and time.monotonic() > until:
            return clock.durations(begins)[1:]


def _synchronizations(training: Training, begun: list[float], asked: list[float]) -> int | None:
    """Returns torch's maximum count of host synchronisations in a step without a snapshot; None on a CPU."""
    if training.device.type != "cuda":
        return None
    found = []
    torch.cuda.set_sync_debug_mode("warn")
    for _ in range(WATCHED):
        known = len(begun) + len(asked)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            training.ours()
        if len(begun) + len(asked) == known:
            found.append(sum("synchroniz" in str(each.message) for each in caught))
    torch.cuda.set_sync_debug_mode("default")
    return max(found, default=None)


def load(training: Training) -> dict[str, Any]:
    """Returns the seconds that resuming from the state in memory takes."""
    training.clock.synchronize()
    began = time.perf_counter()
    step = training.resume()
    training.clock.synchronize()
    return {"seconds": time.perf_counter() - began, "step": step, "checksum": training.checksum()}


def main() -> None:
    """Measures, and prints the results."""
    sizes = json.loads(sys.argv[2])
    training = Training(sizes)
    found = load(training) if sys.argv[1] == "load" else measure(training, sizes["seconds"])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
