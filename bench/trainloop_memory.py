"""Compares a training process's peak memory with the theoretical sum.

The model is a tower of equal square layers with ReLU, trained with Adam. It is much larger than everything else in the
process. A rank's bytes for P parameters, batch B, width d, L layers and W ranks:

    parameters   4P                      FSDP2: 4P/W, and two layers whole
    gradients    4P                      FSDP2: 4P/W, and two layers whole
    optimizer    8P                      ZeRO-1 and FSDP2: 8P/W
    activations  4 B d (L + 1)           what backward needs: each layer's input
    bf16         autocast keeps a copy of the weights, 2P, and activations of 2 bytes, beside the fp32 input
    backward     2 x 4 B d               the gradients of one layer's input and output

The measured value is the process's peak resident memory in steps two and three, minus its memory before the model was
built. /proc/self/clear_refs resets the peak, and with MALLOC_MMAP_THRESHOLD_ memory is freed at once. The sum is an
upper bound if its parts aren't used at the same time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTH, LAYERS, BATCH = 1536, 8, 1024
MIB = 2**20
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("fp32", 1, {}),
    ("fp32", 2, {}),
    ("bf16", 2, {"precision": {"compute": "bf16"}}),
    ("zero1", 2, {"parallel": {"strategy": "zero1"}}),
    ("fsdp", 2, {"parallel": {"strategy": "fsdp"}}),
]


def theory(name: str, ranks: int) -> dict[str, float]:
    """Returns the bytes of each part."""
    layer = WIDTH * WIDTH + WIDTH
    parameters, value = layer * LAYERS, BATCH * WIDTH
    whole = 2 * 4 * layer
    parts = {
        "parameters": 4.0 * parameters,
        "gradients": 4.0 * parameters,
        "optimizer": 8.0 * parameters,
        "activations": 4.0 * value * (LAYERS + 1),
        "backward": 2.0 * 4 * value,
    }
    if name in ("zero1", "fsdp"):
        parts["optimizer"] /= ranks
    if name == "fsdp":
        parts["parameters"] = parts["parameters"] / ranks + whole
        parts["gradients"] = parts["gradients"] / ranks + whole
    if name == "bf16":
        parts["parameters"] += 2.0 * parameters
        parts["activations"] = 2.0 * value * (LAYERS + 1) + 4.0 * value
        parts["backward"] /= 2
    return parts


def peak_of_this_process() -> tuple[int, int]:
    """Returns the current resident bytes, and their peak since the last reset."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    now, peak = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def rank_main(changes: dict[str, Any], folder: str) -> None:
    """Runs one rank, which prints its peak memory minus its memory before the model was built."""
    import torch

    from bench.trainloop_tower import Tower
    from trainloop.config import parse_config
    from trainloop.distributed.world import joined
    from trainloop.trainer import Trainer

    torch.set_num_threads(1)
    config = parse_config(
        {
            "task": {"name": "bench.trainloop_tower:Tower"},
            "steps": 3,
            "batch": {"per_rank": BATCH},
            "optimizer": {"name": "adamw"},
            "precision": {"compute": "fp32"},
            "anomaly": {"enabled": False},
            "preflight": {"enabled": False},
            "metrics": {"path": folder, "plot": False},
            **changes,
        }
    )
    task = Tower({"width": WIDTH, "layers": LAYERS, "samples": 4 * BATCH})
    with joined(config.distributed) as world:
        world.barrier()
        # One-time allocations of the first optimizer and backward pass aren't counted.
        small = torch.nn.Linear(2, 2)
        small(torch.ones(1, 2)).sum().backward()
        torch.optim.AdamW(small.parameters()).step()
        before, _ = peak_of_this_process()
        trainer = Trainer(config, world, task)
        trainer.log.quiet = True
        trainer.prepare()
        trainer.train_step()
        Path("/proc/self/clear_refs").write_text("5")
        trainer.train_step()
        trainer.train_step()
        _, peak = peak_of_this_process()
        world.barrier()
    print(json.dumps(peak - before), flush=True)
    os._exit(0)


def measure(ranks: int, changes: dict[str, Any]) -> int:
    """Returns the maximum bytes that a rank needed."""
    port = str(random.SystemRandom().randrange(15000, 28000))
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            call = [sys.executable, "-m", "bench.trainloop_memory", json.dumps(changes), folder]
            environment = {**os.environ, **place, "MALLOC_MMAP_THRESHOLD_": "65536"}
            processes.append(subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, text=True))
        return max(int(process.communicate(timeout=300)[0].strip().splitlines()[-1]) for process in processes)


def main() -> None:
    """Measures, and prints the results."""
    print(f"{LAYERS} layers of {WIDTH} x {WIDTH}, batch {BATCH} a rank, AdamW; MiB a rank")
    parts = list(theory("fp32", 1))
    print(f"{'':<7}{'ranks':>6}" + "".join(f"{part:>13}" for part in parts) + f"{'sum':>9}{'measured':>10}{'ratio':>7}")
    for name, ranks, changes in CASES:
        sizes = theory(name, ranks)
        total, peak = sum(sizes.values()), measure(ranks, changes)
        row = "".join(f"{sizes[part] / MIB:>13.0f}" for part in parts)
        print(f"{name:<7}{ranks:>6}{row}{total / MIB:>9.0f}{peak / MIB:>10.0f}{peak / total:>7.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank_main(json.loads(sys.argv[1]), sys.argv[2])
    else:
        main()
