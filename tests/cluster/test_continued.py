"""Ranks of real torch train on when others are lost: the operator, agents and `trainloop.recovery` together."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.scenarios import Scenario

pytestmark = pytest.mark.torch

#: Trains until a step; each rank prints its process and what it has at the end, in full.
SCRIPT = """
import os, pathlib, time
import torch
import torch.distributed as dist
from torch import nn
from trainloop.recovery import Recovery
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world, attempt = dist.get_rank(), dist.get_world_size(), int(os.environ["TRAINMASTER_ATTEMPT"])
import threading, sys, signal as sg
print(f"rank {rank} of {world}, attempt {attempt}, pid {os.getpid()}, parent {os.getppid()}.", flush=True)
from trainloop.continuing import start
print("GROUP", os.environ.get("TRAINMASTER_GROUP_FILE"), start.continuing(), type(dist.group.WORLD), flush=True)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
recovery = Recovery(model, optimizer)
go = pathlib.Path(os.environ["GO"])
for step in recovery.steps(1000):
    for part in recovery.parts():
        points = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * 100 + part))
        nn.functional.cross_entropy(model(points), points[:, :3].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (3, 20): print(open(os.environ["TRAINMASTER_PROGRESS_FILE"]).read(), flush=True)
    if not go.exists():
        time.sleep(0.03 if step < 800 else 0.3)
total = sum(value.abs().sum().item() for value in network.state_dict().values())
print(f"rank {rank} ends with {total!r}", flush=True)
os._exit(0)
"""


def test_a_killed_rank_and_a_deleted_pod_stop_nobody(scenario: Scenario, tmp_path) -> None:
    go = tmp_path / "go"
    template = {"spec": {"containers": [{"name": "worker", "env": [{"name": "GO", "value": str(go)}]}]}}
    program = tmp_path / "train.py"
    program.write_text(SCRIPT)
    scenario.apply(workers=3, podTemplate=template, launcher="torchrun", command=["python3", str(program)])
    started = scenario.until_training(workers=3)
    scenario.until(lambda: (scenario.status.get("progress") or {}).get("step", 0) > 10, "steps")
    scenario.send(1, started[1].pid, signal.SIGKILL)
    for _ in range(40):
        time.sleep(0.25)
        s = scenario.status
        print(time.time(), {k: s.get(k) for k in ("phase", "attempt", "continues", "absentRanks", "trainingWith", "restarts")})
        if s.get("attempt", 0) >= 3 and not s.get("absentRanks"):
            break
    for pod in scenario.pods(): print(scenario.log(pod))
    go.touch()
    scenario.succeeds(attempt=3, restarts=1)
    print(scenario.failures)
