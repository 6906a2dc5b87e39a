"""The agent runs scripts and the loop on gloo with the real torchrun, and survives a killed rank in place."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes.agent.agents import Agent, Job, Stream, until
from tests.trainer.toy import Toy
from trainloop.data import Batch
from trainmaster.client.metrics import RankMetrics, parse_metrics

pytestmark = pytest.mark.torch

SCRIPT = """
import json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
# Averages by hand: DDP and optimizers import torch._dynamo, two seconds of work in each process.
model = torch.nn.Linear(4, 1)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"] + f".{rank}")

def save(*_):
    time.sleep(1)
    pathlib.Path(sys.argv[3], f"saved-{rank}").touch()
    os._exit(0)

signal.signal(signal.SIGTERM, save)
for step in range(1, steps + 1):
    loss = model(torch.ones(2, 4) * (rank + 1)).pow(2).mean()
    for weight, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
        dist.all_reduce(gradient)
        weight.data -= 0.05 * gradient
    progress.write_text(json.dumps({"step": step, "totalSteps": steps, "loss": loss.item()}))
    if step == 1:
        attempt, world = os.environ["TRAINMASTER_ATTEMPT"], dist.get_world_size()
        print(f"attempt {attempt} pid {os.getpid()} world {world}", flush=True)
    time.sleep(seconds)
dist.destroy_process_group()
# torch 2.13 aborts now and then while the interpreter shuts down ("terminate called without an active exception").
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"127.{64 + os.getpid() % 60}.{os.getpid() // 60 % 250}")
    yield made
    made.end()


def start(job: Job) -> Agent:
    """Start a worker with two ranks that train until they are ended."""
    path = job.folder / "train.py"
    path.write_text(SCRIPT)
    environ = {"TRAINMASTER_LAUNCHER": "torchrun", "NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    agent = job.agent(0, **environ, GLOO_SOCKET_IFNAME="lo").start(
        sys.executable, str(path), "1000", "0.05", str(job.folder)
    )
    job.annotate(job.assignment(1))
    return agent


def start_loop(job: Job, processes: int, options: dict[str, Any]) -> Agent:
    """Start a worker whose ranks run trainloop."""
    environ = {"TRAINMASTER_LAUNCHER": "torchrun", "NPROC_PER_NODE": str(processes), "OMP_NUM_THREADS": "1"}
    environ |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}
    options |= {"batch.size": 8, "precision.compute": "fp64", "metrics.path": job.folder / "report"}
    sets = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    agent = job.agent(0, **environ).start(sys.executable, "-m", "trainloop", *sets)
    job.annotate(job.assignment(1))
    return agent


def test_a_killed_rank_is_named_with_its_signal_and_all_train_again_in_place(job: Job) -> None:
    agent = start(job)
    stream = Stream(agent)

    def pid() -> int:
        lines = [line for line in agent.output().splitlines() if "[rank 1]: attempt 1 pid " in line]
        return int(lines[0].split()[5]) if lines else 0

    os.kill(until(pid, 90, "rank 1 trains"), signal.SIGKILL)
    culprit = stream.until(lambda line: (line.get("report") or {}).get("culprit") is True and "Failed" in str(line), 90)
    report = culprit["report"]
    assert (report["rank"], report["signal"], report["reason"]) == (1, 9, "Signal")
    assert agent.request("POST", "/v1/ack", {"seq": culprit["seq"]})[0] == 204
    assert agent.request("POST", "/v1/assignment", job.assignment(2))[0] == 204
    progress = stream.until(lambda line: line["type"] == "progress" and line["attempt"] == 2, 90)
    assert set(progress["ranks"]) <= {"0", "1"}
    assert progress["ranks"]["0"]["totalSteps"] == 1000
    stream.close()
    process = agent.process
    assert process is not None
    process.terminate()
    assert agent.exit_code() == 143
    assert (job.folder / "saved-0").exists() and (job.folder / "saved-1").exists()
    assert agent.termination()["state"] == "Stopped"


RACE = """
import json, os, pathlib, signal, sys, time
rank, seconds = int(os.environ["RANK"]), float(sys.argv[1])

def raised(text):
    # As torch.distributed.elastic's @record writes it, before the process ends.
    message = {"message": text, "extraInfo": {"py_callstack": "Traceback", "timestamp": "0"}}
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": message}))

if rank == 0:
    print("a step like any other", flush=True)
    time.sleep(60)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
done = pathlib.Path(sys.argv[2])
if rank == 2:
    raised("ValueError: sample 7 is no sentence")
    done.touch()
    time.sleep(seconds)
    os._exit(1)
while not done.exists():
    time.sleep(0.01)
raised("RuntimeError: Connection closed by peer [127.0.0.1]:44243")
os._exit(1)
"""


@pytest.mark.parametrize("seconds", [0.2, 20.0], ids=["soon", "after the grace"])
def test_the_rank_that_raised_is_named_though_another_one_is_gone_before_it(job: Job, seconds: float) -> None:
    """On a loaded machine a process takes long to end. Meanwhile a peer has lost its connection and ended, so torchrun
    ends the rank at fault, and a healthy one, with SIGTERM.
    """
    path = job.folder / "race.py"
    path.write_text(RACE)
    environ = {"TRAINMASTER_LAUNCHER": "torchrun", "NPROC_PER_NODE": "3"}
    agent = job.agent(0, **environ).start(sys.executable, str(path), str(seconds), str(job.folder / "raised"))
    job.annotate(job.assignment(1))
    stream = Stream(agent)
    culprit = stream.until(_culprit, 90)["report"]
    stream.close()
    assert (culprit["rank"], culprit["exitCode"], culprit["reason"]) == (2, 1, "Error")
    assert "ValueError: sample 7 is no sentence" in culprit["error"]


def _culprit(line: dict[str, Any]) -> bool:
    """Returns the report on the cause: a rank that only lost its peer may be reported before it."""
    report = line.get("report") or {}
    return report.get("state") == "Failed" and report.get("culprit") is True


class Slow(Toy):
    """The second rank computes 20 ms longer than the first, which waits for it in every step. When a file `raise`
    exists, it raises an exception; the first rank then fails too, in its collective.
    """

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        time.sleep(0.02 * int(os.environ["RANK"]))
        return super().loss(model, batch)

    def collate(self, samples: list[Any]) -> Batch:
        if os.environ["RANK"] == "1" and Path(self.options["folder"], "raise").exists():
            raise ValueError("sample 7 is no sentence")
        return super().collate(samples)


def test_a_slow_rank_is_seen_in_its_agents_metrics_and_reported_with_its_traceback_when_it_raises(job: Job) -> None:
    """With two ranks, the slow rank's steps take as long as the other's. The test above shows which of three ranks
    raised first.
    """
    options = {"task.name": f"{__name__}:Slow", "task.options.folder": job.folder, "steps": 100_000}
    agent = start_loop(job, 2, options)
    stream = Stream(agent)

    def figures() -> list[RankMetrics]:
        found = parse_metrics(0, agent.request("GET", "/metrics", token=None)[1])
        if len(found) < 2 or not all(rank.compute_seconds for rank in found) or found[0].step == 1:
            return []
        # The ranks write a line's figures at slightly different times.
        if found[0].learning_rate != found[1].learning_rate:
            return []
        # A busy machine may delay the first steps of the other rank as well.
        return found if found[1].compute_seconds - found[0].compute_seconds > 0.01 else []

    first, second = until(figures, 90, "figures of both ranks, of which the second takes longer")
    assert first.step_seconds > 0.02 and second.step_seconds > 0.02
    assert first.gradient_norm != second.gradient_norm and first.learning_rate > 0
    (job.folder / "raise").touch()
    culprit = stream.until(_culprit, 90)["report"]
    stream.close()
    assert (culprit["culprit"], culprit["rank"], culprit["exitCode"]) == (True, 1, 1)
    assert "ValueError: sample 7 is no sentence" in culprit["error"] and "in collate" in culprit["error"]
    # All ranks' output is kept, and each line names its rank.
    until(lambda: all(f"[rank {rank}]: " in agent.output() for rank in (0, 1)), 20, "prefixed output")
