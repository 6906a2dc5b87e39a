"""Cause faults in a job on a cluster that kubectl reaches: `python -m bench.continued_on_kubernetes`.

The cluster must have Trainmaster, and there must be an image with torch. On the embedded cluster `bench.fault_cost`
measures more. A row shows medians and maxima of four times in seconds: from a fault to the survivors' next new step,
between their last step before it and that step, the same gap when the lost ranks join again, and until all ranks train.
A pod counts as lost when kubectl is called, which is before its end; a stopped rank counts as lost at its limit.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from bench.clusters import table

#: Prints each gap between two steps that is longer than a tenth of a second. The printed process id serves to kill or
#: stop the rank.
SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from trainloop.recovery import Recovery

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print(f"process {os.getpid()}.", flush=True)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
recovery = Recovery(model, optimizer)
before, made = time.time(), 0
for step in recovery.steps(10**9):
    now = time.time()
    if step != made:
        if made and now - before > 0.1:
            print(f"gap {before:.3f} {now:.3f}", flush=True)
        before, made = now, step
    for part in recovery.parts(world):
        points = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * 100 + part))
        nn.functional.cross_entropy(model(points), points[:, :3].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)
"""
KILL = "import os, sys, time; print(time.time()); os.kill(int(sys.argv[1]), int(sys.argv[2]))"
IMAGE = "ghcr.io/trainmaster/trainer:0.1.0"
HANG_SECONDS = 3
FAULTS = ("rank killed", "pod deleted by force", "leader's pod", "rank stopped")


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.name, self.workers, self.image = "bench-continued", options.workers, options.image
        self.rows: dict[str, list[tuple[float, ...]]] = {}

    def kubectl(self, *arguments: str, **options: Any) -> str:
        done = subprocess.run(["kubectl", *arguments], check=True, stdout=subprocess.PIPE, text=True, **options)
        return done.stdout

    def apply(self) -> None:
        script = {"name": "script", "configMap": {"name": self.name}}
        worker = {"name": "worker", "volumeMounts": [{"name": "script", "mountPath": "/script"}]}
        spec = {
            "image": self.image,
            "workers": self.workers,
            "launcher": "torchrun",
            "command": ["python3", "/script/train.py"],
            "resources": {"gpus": 0, "cpu": {"request": "100m", "limit": 2}, "memory": "1536Mi"},
            "failurePolicy": {
                "maxRestarts": 1000,
                "hang": {"progressSeconds": HANG_SECONDS},
                "nodes": {"quarantineAfter": 0},
            },
            "podTemplate": {"spec": {"volumes": [script], "containers": [worker]}},
        }
        metadata = {"name": self.name}
        code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"train.py": SCRIPT}}
        kind = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob"}
        for each in (code, {**kind, "metadata": metadata, "spec": spec}):
            self.kubectl("apply", "-f", "-", input=json.dumps(each))

    def all_train(self, seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            status = json.loads(self.kubectl("get", "dtj", self.name, "-o", "json")).get("status", {})
            if status.get("phase") == "Running" and not status.get("absentRanks") and status.get("progress"):
                return
            time.sleep(0.2)
        raise SystemExit(f"not all ranks train: {status}")

    def log(self, worker: int) -> str:
        return self.kubectl("logs", f"{self.name}-{worker}", "-c", "worker")

    def cause(self, fault: str, worker: int) -> float:
        """Causes a fault; returns the earliest time at which the survivors can detect it."""
        pod = f"{self.name}-{worker}"
        if fault.startswith("rank"):
            number, late = ("19", HANG_SECONDS) if fault == "rank stopped" else ("9", 0)
            process = re.findall(r"process (\d+)\.", self.log(worker))[-1]
            said = self.kubectl("exec", pod, "-c", "worker", "--", "python3", "-c", KILL, process, number)
            return float(said) + late
        now = time.time()
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false", stderr=subprocess.DEVNULL)
        return now

    def measure(self, fault: str, worker: int) -> None:
        at = self.cause(fault, worker)
        time.sleep(max(0.0, at - time.time()) + 1.5)
        self.all_train()
        again = time.time() - at
        time.sleep(1.5)
        gaps = [gap for other in range(self.workers) if other != worker for gap in self.gaps(other) if gap[1] > at]
        cut_off = [gap for gap in gaps if gap[0] < at + 1.0]
        later = max((end - begin for begin, end in gaps if begin >= at + 1.0), default=0.0)
        begin, end = min(begin for begin, _ in cut_off), max(end for _, end in cut_off)
        limit = HANG_SECONDS if fault == "rank stopped" else 0
        self.rows.setdefault(fault, []).append((end - at, end - begin - limit, later, again))

    def gaps(self, worker: int) -> Iterator[tuple[float, float]]:
        for begin, end in re.findall(r"gap ([\d.]+) ([\d.]+)", self.log(worker)):
            yield float(begin), float(end)

    def print(self) -> None:
        rows = []
        for fault, found in self.rows.items():
            columns = (f"{statistics.median(values):.2f} / {max(values):.2f}" for values in zip(*found, strict=True))
            rows.append([fault, len(found), *columns])
        table("Seconds", ["fault", "n", "next new step", "no step for", "as ranks join", "all train"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--image", default=IMAGE, help="Use this image, which needs torch and python3 (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=4, help="Start this many workers, at least 2")
    parser.add_argument("--rounds", type=int, default=5, help="Cause this many faults of each kind")
    options = parser.parse_args()
    if subprocess.run(["kubectl", "get", "dtj"], capture_output=True, check=False).returncode:
        print("left out: kubectl reaches no cluster with Trainmaster in it")
        return
    bench = Bench(options)
    bench.apply()
    try:
        bench.all_train()
        time.sleep(3)
        for number in range(options.rounds):
            for fault in FAULTS:
                bench.measure(fault, 0 if fault == "leader's pod" else 1 + number % (options.workers - 1))
    finally:
        bench.kubectl("delete", "dtj", bench.name, "--wait=false")
    bench.print()


if __name__ == "__main__":
    main()
