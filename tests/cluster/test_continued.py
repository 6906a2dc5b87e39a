"""Ranks of real torch train on when others are lost: the operator, the agents and `trainloop.recovery` together."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.scenarios import Scenario, Stage, Start

pytestmark = pytest.mark.torch

#: Trains on three parts per step, however many ranks there are; at the end each rank prints the sum of its weights.
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
print(f"rank {rank} of {world}, attempt {attempt}, pid {os.getpid()}, parent {os.getppid()}.", flush=True)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
model = nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
recovery = Recovery(model, optimizer)
go = pathlib.Path(os.environ["GO"])
for step in recovery.steps(600):
    for part in recovery.parts(3):
        points = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * 100 + part))
        loss = nn.functional.cross_entropy(model(points), points[:, :3].argmax(1)) * world / 3
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not go.exists():  # until the test has done what it does
        time.sleep(0.03 if step < 400 else 0.3)
print(f"weights {sum(value.abs().sum().item() for value in network.parameters())!r}.", flush=True)
os._exit(0)
"""


def begin(scenario: Scenario, folder: Path, workers: int = 3, grace: int = 3, **spec: Any) -> dict[int, Start]:
    """Starts the job, and waits until its ranks can continue; returns their starts."""
    program, go = folder / "train.py", folder / "go"
    program.write_text(SCRIPT)
    container = {"name": "worker", "env": [{"name": "GO", "value": str(go)}]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": grace}}
    command = ["python3", str(program)]
    scenario.apply(workers=workers, launcher="torchrun", command=command, podTemplate=template, **spec)
    started = scenario.until_training(workers=workers)
    scenario.until(lambda: step(scenario) > 10, "steps are made")
    return started


def step(scenario: Scenario) -> int:
    return int((scenario.status.get("progress") or {}).get("step", 0))


def joined(scenario: Scenario, attempt: int) -> None:
    """Waits until all ranks train again, in this attempt or a later one, and have made some steps."""

    def whole() -> bool:
        status = scenario.status
        assert status["phase"] == "Running", status
        return status["attempt"] >= attempt and not status.get("absentRanks")

    scenario.until(whole, f"all ranks in attempt {attempt}")
    made = step(scenario)
    scenario.until(lambda: step(scenario) > made + 5, "steps are made")


def weights(scenario: Scenario, workers: int = 3) -> set[str]:
    """Returns each rank's sum at the end, to ten digits."""
    found = [re.search(r"weights ([\d.]+)\.", scenario.kept_log(worker)) for worker in range(workers)]
    return {f"{float(match[1]):.10g}" for match in found if match is not None}


@pytest.fixture
def undisturbed(stage: Stage, tmp_path: Path) -> str:
    """Returns the sum of an uninterrupted rank that trains alone."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "go").touch()
    with stage.scenario() as alone:
        program = tmp_path / "alone" / "train.py"
        program.write_text(SCRIPT)
        env = [{"name": "GO", "value": str(tmp_path / "alone" / "go")}]
        template = {"spec": {"containers": [{"name": "worker", "env": env}]}}
        alone.apply(workers=1, launcher="torchrun", command=["python3", str(program)], podTemplate=template)
        alone.until_phase("Succeeded")
        [only] = weights(alone, 1)
        return only


def test_a_killed_rank_a_stopped_one_and_lost_pods_stop_nobody(
    scenario: Scenario, tmp_path: Path, undisturbed: str
) -> None:
    started = begin(scenario, tmp_path, failurePolicy={"hang": {"progressSeconds": 6}})
    scenario.send(1, started[1].pid, signal.SIGKILL)
    joined(scenario, 3)
    scenario.send(2, started[2].pid, signal.SIGSTOP)
    joined(scenario, 5)
    # The leader's pod, and rank 0's.
    scenario.cluster.delete("pod", f"{scenario.name}-0", wait=False, grace=0)
    joined(scenario, 7)
    assert scenario.status["continues"] == 1
    (tmp_path / "go").touch()
    scenario.until_phase("Succeeded")
    assert [item["reason"] for item in scenario.failures] == ["PodDeleted", "Hung", "Signal"], scenario.failures
    assert [item.get("recovery", {}).get("repeatedSteps", 0) for item in scenario.failures] == [0, 0, 0]
    assert (scenario.status["restarts"], scenario.status["disruptions"]) == (2, 1)
    assert weights(scenario) == {undisturbed}
    began = [(start.rank, start.pid) for start in scenario.starts() if start.rank == 1]
    assert len(began) <= 2, "rank 1 was started anew once, for its own fault"


def test_when_all_pods_have_been_replaced_one_after_another_the_state_is_still_there(
    scenario: Scenario, tmp_path: Path, undisturbed: str
) -> None:
    """Nodes are drained: none of the first ranks is left, and then all ranks that joined are lost."""
    begin(scenario, tmp_path, grace=30)
    for attempt, worker in ((3, 2), (5, 0), (7, 1)):
        scenario.cluster.delete("pod", f"{scenario.name}-{worker}", wait=False)
        joined(scenario, attempt)
    assert scenario.status["continues"] == 1
    reached = step(scenario)
    for start in {start.rank: start for start in scenario.starts()}.values():
        scenario.send(start.rank, start.pid, signal.SIGKILL)
    scenario.until(lambda: scenario.status.get("continues") is None, "all ranks start anew")
    joined(scenario, 8)
    (tmp_path / "go").touch()
    scenario.until_phase("Succeeded")
    resumed = [int(step) for step in re.findall(r"continues after step (\d+)", scenario.kept_log(0))]
    # Nobody is left to write the last step, so the newest snapshot counts. Snapshots come every five steps of
    # 0.3 s (every second, and a step in which ranks inform each other that all hold one).
    assert resumed and resumed[-1] >= reached - 5, "all ranks together go on from a state that joined ranks have made"
    assert weights(scenario) == {undisturbed}
