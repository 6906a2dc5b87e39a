"""A rank that never enters a collective is found by torch's flight recorder, with real agents and ranks on gloo."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.agents import Job, Stream

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, pathlib, time
import torch
import torch.distributed as dist
from trainloop.distributed import DistributedSettings, joined
from trainloop.inquiries import answer_inquiries

rank = int(os.environ["RANK"])
answer_inquiries(rank)
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
    texts = {}
    while True:
        line = stream.until(
            lambda line: line["type"] == "evidence" or (line.get("report") or {}).get("state") == "Failed"
        )
        if line["type"] == "report":
            break
        texts |= {int(rank): data for rank, data in line["ranks"].items()}
    failed = line["report"]
    assert (failed["reason"], failed["rank"]) == ("Hung", 0), failed
    entered = texts[1]["collective"]
    assert texts[0]["collective"] == entered - 1
    assert f"it never entered collective {entered}, in which all other ranks wait" in failed["error"]
    assert "in read_a_batch_for_ever" in failed["error"]
    assert f"waits in collective {entered}: gloo:all_reduce of [[3]]" in texts[1]["text"]
    assert texts[1]["waits"] is True
    stream.close()
