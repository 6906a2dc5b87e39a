"""Real agents find which rank hung, with `distributed/diagnostics`, and below a user's launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.agent.agents import Job, Stream

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, pathlib, time
import torch
import torch.distributed as dist
from trainloop.distributed.world import DistributedSettings, joined
from trainloop.distributed.diagnostics import dump_stacks_on_signal

rank = int(os.environ["RANK"])
dump_stacks_on_signal(rank)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])

def read_a_batch_for_ever():
    time.sleep(300)

with joined(DistributedSettings(backend="gloo")) as world:
    for step in (1, 2):
        dist.all_reduce(torch.ones(3))
        progress.write_text(json.dumps({"step": step}))
    if rank == 0:
        read_a_batch_for_ever()
    dist.all_reduce(torch.ones(3))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"127.125.{os.getpid() % 250}")
    yield made
    made.end()


def test_the_rank_that_never_entered_the_collective_is_named(job: Job) -> None:
    path = job.folder / "train.py"
    path.write_text(SCRIPT)
    variables = {
        "PYTHONPATH": f"{ROOT / 'images/trainer'}:{ROOT / 'operator'}",
        "OMP_NUM_THREADS": "1",
        "TRAINMASTER_PROGRESS_TIMEOUT": "2",
        "TRAINMASTER_FIRST_STEP_TIMEOUT": "100",
    }
    agents = [job.agent(worker).start(sys.executable, str(path), **variables) for worker in range(2)]
    job.annotate(job.assignment(1, range(2)))
    stream = Stream(agents[0])
    texts, failed = evidence_and_report(stream)
    assert (failed["reason"], failed["rank"]) == ("Hung", 0), failed
    entered = texts[1]["collective"]
    assert texts[0]["collective"] == entered - 1
    assert f"it never entered collective {entered}, in which all other ranks wait" in failed["error"]
    assert "in read_a_batch_for_ever" in failed["error"]
    assert f"waits in collective {entered}: gloo:all_reduce of [[3]]" in texts[1]["text"]
    assert (texts[1]["waits"], texts[1]["pending"]) == ("collective", True)
    assert (texts[0]["waits"], "pending" in texts[0]) == ("nothing", False)
    stream.close()


# Rank 0 prints its stacks at SIGUSR2; rank 1 is a program without a handler.
LAUNCHED = """
import faulthandler, json, os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
if rank == 0:
    faulthandler.register(signal.SIGUSR2, file=open(os.environ["TRAINMASTER_STACKS_FILE"] + ".0", "w"), chain=False)

def wait_for_the_other():
    time.sleep(300)

def read_a_batch_for_ever():
    time.sleep(300)

print("rank", rank, "is", os.getpid(), flush=True)
# Both are there before either reports progress: a rank that has reported none isn't watched.
here = pathlib.Path(__file__).parent
(here / f"here-{rank}").touch()
while not all((here / f"here-{other}").exists() for other in (0, 1)):
    time.sleep(0.01)
pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"] + f".{rank}").write_text(json.dumps({"step": 3 - rank}))
read_a_batch_for_ever() if rank == 1 else wait_for_the_other()
"""


def test_the_ranks_below_a_torchrun_of_the_users_own_are_diagnosed(job: Job) -> None:
    """The launcher runs below a shell, as in a user's script; all ranks inherit the manifest's RANK."""
    path = job.folder / "train.py"
    path.write_text(LAUNCHED)
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node=2 {path}; exit $?"
    variables = {"NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1", "TRAINMASTER_PROGRESS_TIMEOUT": "1.5"}
    agent = job.agent(0).start("/bin/sh", "-c", torchrun, **variables)
    job.annotate(job.assignment(1, range(1)))
    stream = Stream(agent)
    texts, failed = evidence_and_report(stream)
    assert (failed["reason"], failed["rank"]) == ("Hung", 1), failed
    assert "in read_a_batch_for_ever" in failed["error"], "it was ended so that it prints its stack"
    assert "torch/distributed" not in failed["error"], "not where its launcher is"
    assert "; all other ranks have done step 3" in failed["error"]
    assert sorted(texts) == [0, 1]
    assert "in wait_for_the_other" in texts[0]["text"]
    assert "in read_a_batch_for_ever" in texts[1]["text"]
    pids = dict(line.split()[-3::2] for line in agent.output().splitlines() if " is " in line)
    assert all(f"pid {pids[str(rank)]} " in texts[rank]["text"] for rank in (0, 1))
    stream.close()


def evidence_and_report(stream: Stream) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Returns each rank's newest evidence, and the failure's report."""
    found: dict[int, dict[str, Any]] = {}
    while True:
        line = stream.until(
            lambda line: line["type"] == "evidence" or (line.get("report") or {}).get("state") == "Failed", 120
        )
        if line["type"] == "report":
            return found, line["report"]
        found |= {int(rank): data for rank, data in line["ranks"].items()}
