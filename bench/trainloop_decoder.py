"""Measures the share of a GPU's peak that a decoder uses in trainloop and in a loop by hand, and checkpoints' pauses.

Both loops train images/trainer/examples/decoder.py (about a billion parameters) in bf16, with compiled blocks, fused
AdamW and the same batches. They alternate, round by round, in one process. MFU counts 6 operations for each parameter
and token, and 12 x layers x width x context for attention (PaLM, appendix B). Causal attention needs half of the
latter, which "causal" counts. On a CPU a tiny model only shows that the program runs. Goals: MFU 50 %, 0.1 ms a step
over the bare loop, and under 0.5 % of the time for checkpoints.
"""

from __future__ import annotations

import gc
import json
import math
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainloop.checkpoints.snapshots import capture
from trainloop.config import Config, parse_config
from trainloop.data import permutation
from trainloop.distributed.world import joined
from trainloop.optimization.optimizer import chosen
from trainloop.optimization.precision import computes_in_bf16
from trainloop.parallel.blocks import prepared
from trainloop.tasks import build_task
from trainloop.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "images" / "trainer" / "examples"))

#: Dense bf16 TFLOP/s from the makers' data sheets, by a part of torch's name of the card. The first match is used.
PEAKS = {
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H200 NVL": 835,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "B200": 2250,
    "A100": 312,
    "A800": 312,
    "L40S": 362,
    "L4": 121,
    "RTX 4090": 165,
    "MI300X": 1307,
}
#: The model's sizes on a CPU. On a GPU the example's defaults are used.
TINY = {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "context": 32, "vocabulary": 256}
#: Micro-batches of a step, and samples of each (fewer if the memory is too small).
ACCUMULATION, PER_RANK = 2, (8, 4, 2, 1)
#: Steps between two checkpoints: trainloop's default.
CHECKPOINT_STEPS = 1000
TEXT_BYTES = 1 << 24


def peak_tflops(card: str) -> int | None:
    """Returns a card's dense bf16 TFLOP/s; None if it is unknown."""
    return next((peak for name, peak in PEAKS.items() if re.search(rf"\b{name}\b", card)), None)


def operations(parameters: int, layers: int, width: int, context: int, *, causal: bool = False) -> int:
    """Returns the floating-point operations of one token's forward and backward pass."""
    return 6 * parameters + 12 * layers * width * context // (1 + causal)


def configuration(folder: Path, device: torch.device, per_rank: int) -> Config:
    """Returns the measured run's configuration. Its files are in `folder`."""
    text, gpu = folder / "text.txt", device.type != "cpu"
    if not text.exists():
        generator = torch.Generator().manual_seed(0)
        size = TEXT_BYTES if gpu else 1 << 16
        text.write_bytes(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).numpy().tobytes())
    return parse_config(
        {
            "task": {"name": "decoder:DecoderTask", "options": {"path": str(text), **({} if gpu else TINY)}},
            "steps": 1_000_000,
            "batch": {"per_rank": per_rank, "accumulation": ACCUMULATION},
            "blocks": {"compile": True if gpu else "aot_eager"},
            "optimizer": {"lr": 1e-4, "weight_decay": 0.1, "betas": [0.9, 0.95]},
            "schedule": {"kind": "constant", "warmup": 0},
            "checkpoint": {"path": str(folder / "checkpoints"), "mode": "thread", "every_steps": 10**6, "keep": 1},
            "metrics": {"path": str(folder / "report"), "plot": False},
        }
    )


class Bare:
    """Bare is a loop written by hand, without checks, checkpoints, or metrics other than a loss every ten steps."""

    def __init__(self, task: Any, config: Config, device: torch.device, model: nn.Module) -> None:
        self.task, self.device, self.bf16 = task, device, computes_in_bf16(device)
        self.size, self.accumulation = config.batch.per_rank or 1, config.batch.accumulation
        self.model = prepared(config.blocks, model)
        self.optimizer = chosen(self.model, config.optimizer)
        self.order, self.start, self.made = permutation(config.seed.value, 0, len(task.train)).tolist(), 0, 0

    def step(self) -> None:
        whole = self.size * self.accumulation
        for _ in range(self.accumulation):
            indices = self.order[self.start : self.start + self.size]
            self.start = (self.start + self.size) % (len(self.order) - whole)
            tokens = self.task.collate([self.task.train[index] for index in indices])["tokens"]
            if self.device.type != "cpu":
                tokens = tokens.pin_memory().to(self.device, non_blocking=True)
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                loss = self.task.loss(self.model, {"tokens": tokens}) / (whole * self.task.options.context)
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.made += 1
        if self.made % 10 == 0:
            float(loss.detach())


class Meter:
    """Meter measures steps on one device, while the host is ahead of the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def seconds(self, step: Callable[[], object], steps: int) -> float:
        """Returns the seconds that this many steps take."""
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        self.wait()
        return time.perf_counter() - began

    def held(self) -> int:
        """Returns the bytes of the device's memory that are in use."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def peak(self, step: Callable[[], object]) -> int:
        """Returns the maximum bytes that are in use during a step."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self.device)
        self.seconds(step, 1)
        return torch.cuda.max_memory_allocated(self.device)


def measured(seconds: float = 90.0) -> dict[str, Any]:
    """Returns the figures for `table`, measured in about `seconds`, which include compilation."""
    until = time.monotonic() + seconds
    # If there is room, files are written to memory, so that a disk's speed doesn't matter.
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 60 << 30
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as name:
        for per_rank in PER_RANK:
            try:
                return _measured(Path(name), per_rank, until)
            except torch.OutOfMemoryError:
                if per_rank == PER_RANK[-1]:
                    raise
            except Exception as error:
                if not isinstance(error.__cause__, torch.OutOfMemoryError) or per_rank == PER_RANK[-1]:
                    raise
            gc.collect()
            torch.accelerator.empty_cache()
    raise AssertionError


def _measured(folder: Path, per_rank: int, until: float) -> dict[str, Any]:
    with joined(parse_config({"steps": 1, "batch": {"size": 1}}).distributed) as world:
        device, meter = world.device, Meter(world.device)
        config = configuration(folder, device, per_rank)
        task, held = build_task(config.task), [meter.held()]
        make: Callable[[], nn.Module] = task.model

        def made_there() -> nn.Module:
            with device:  # a billion normal numbers take a CPU many seconds
                return make()

        task.model = made_there  # type: ignore[method-assign]
        trainer = Trainer(config, world, task)
        trainer.log.quiet = True
        trainer.prepare()
        first = meter.seconds(trainer.train_step, 1)
        meter.seconds(trainer.train_step, 2)
        held.append(meter.held())
        bare = Bare(task, config, device, made_there().float())
        meter.seconds(bare.step, 3)
        held.append(meter.held())
        loops: dict[str, Callable[[], object]] = {"bare": bare.step, "trainloop": trainer.train_step}
        state = {"trainloop": held[1] - held[0], "bare": held[2] - held[1]}
        peaks = {name: meter.peak(loop) - sum(state.values()) + state[name] for name, loop in loops.items()}
        # A third of the time is used for steps, in ten rounds of each loop.
        once = meter.seconds(trainer.train_step, 1)
        steps = max(1, min(20, math.floor((until - time.monotonic()) / 3 / 20 / once)))
        rounds: dict[str, list[float]] = {"bare": [], "trainloop": []}
        for number in range(10):
            for name in sorted(loops, reverse=bool(number % 2)):
                rounds[name].append(meter.seconds(loops[name], steps) / steps)
        stalls = _stalls(trainer, meter, statistics.median(rounds["trainloop"]))
        options, card = task.options, torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"  # type: ignore[attr-defined]
        return {
            "card": card,
            "torch": torch.__version__,
            "precision": trainer.precision.compute,
            "parameters": trainer._parameters,
            "sizes": {name: getattr(options, name) for name in ("layers", "width", "context")},
            "tokens": per_rank * ACCUMULATION * options.context,
            "firstStepSeconds": first,
            "steps": steps,
            "rounds": rounds,
            "peakBytes": peaks,
            "stallSeconds": stalls,
        }


def _stalls(trainer: Trainer, meter: Meter, step: float) -> dict[str, float]:
    """Returns the seconds by which a checkpoint (written by a thread) delays training, and the first one's extra."""
    checkpoints, steps = trainer.checkpoints, max(2, math.ceil(2.0 / step))
    assert checkpoints is not None and checkpoints._thread is not None
    copies = checkpoints._thread._copies
    allocated = meter.seconds(lambda: copies.begin(capture(trainer.run_state, 1, whole=True, keep=True, loss=None)), 1)

    def saved_and_stepped() -> None:
        trainer.save()
        for _ in range(steps):
            trainer.train_step()

    longer = meter.seconds(saved_and_stepped, 1) - steps * step
    checkpoints.close()
    return {"allocation": allocated, "checkpoint": longer}


def table(found: dict[str, Any]) -> str:
    """Returns the figures as text."""
    peak, sizes = peak_tflops(found["card"]), found["sizes"]
    lines = [
        f"{found['card']}, torch {found['torch']}, {found['precision']}: {found['parameters']:,} parameters, "
        f"{found['tokens']:,} tokens a step, medians of {len(found['rounds']['bare'])} x {found['steps']} steps",
        f"{'loop':<10}{'ms a step':>11}{'tokens/s':>11}{'MFU':>8}{'causal':>8}{'peak GiB':>10}",
    ]
    middle = {name: statistics.median(rounds) for name, rounds in found["rounds"].items()}
    for name, seconds in middle.items():
        shares = ["-", "-"]
        if peak:
            rate = found["tokens"] / seconds / (peak * 1e12)
            shares = [
                f"{operations(found['parameters'], **sizes, causal=causal) * rate:.1%}" for causal in (False, True)
            ]
        lines.append(
            f"{name:<10}{seconds * 1000:>11.2f}{found['tokens'] / seconds:>11,.0f}{shares[0]:>8}{shares[1]:>8}"
            f"{found['peakBytes'][name] / 2**30:>10.2f}"
        )
    costs = [ours - bare for bare, ours in zip(found["rounds"]["bare"], found["rounds"]["trainloop"], strict=True)]
    cost = statistics.median(costs)
    lines.append(
        f"trainloop over bare: {cost * 1000:.2f} ms a step ({cost / middle['bare']:.2%}), rounds from "
        f"{min(costs) * 1000:.2f} to {max(costs) * 1000:.2f}"
    )
    interval = CHECKPOINT_STEPS * middle["trainloop"]
    stall, once = found["stallSeconds"]["checkpoint"], found["stallSeconds"]["allocation"]
    share = f"{stall / interval:.2%} of {CHECKPOINT_STEPS:,} steps' time"
    lines.append(f"a checkpoint: {stall:.3f} s, {share}, and once {once:.1f} s for the memory that it is copied into")
    if peak is None:
        lines.append(f"no MFU: the peak of {found['card']!r} isn't known (PEAKS in bench/trainloop_decoder.py)")
    if found["card"] == "CPU":
        lines.append("this is no measurement: on a CPU the model is tiny, and the program only shows that it runs")
    lines.append("goal: MFU 50 %, 0.1 ms over the bare loop, under 0.5 % for checkpoints")
    return "\n".join(lines)


def main() -> None:
    """Measures, and prints the table and then the figures as JSON."""
    found = measured(90.0 if torch.accelerator.is_available() else 15.0)
    print(table(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
