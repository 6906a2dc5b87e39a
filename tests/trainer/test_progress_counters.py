"""If ranks report no progress and hang, torch's own counters show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.agent.agents import Job, Stream

from .test_stall_evidence import evidence_and_report

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]

# The flight recorder is served as NCCL's process groups do it themselves; nobody writes a progress file. Rank 0 is
# busy for long in no collective while its peer is in none either, and later while its peer waits.
SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from trainloop.distributed.world import DistributedSettings, joined

rank = int(os.environ["RANK"])

def read_a_batch_for_ever():
    time.sleep(300)

with joined(DistributedSettings(backend="gloo")):
    for _ in range(20):
        dist.all_reduce(torch.ones(3))
        time.sleep(0.1)
    time.sleep(5)
    print("long enough", flush=True)
    if rank == 0:
        read_a_batch_for_ever()
    dist.all_reduce(torch.ones(3))
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"127.127.{os.getpid() % 250}")
    yield made
    made.end()


def test_a_rank_that_stays_in_one_collective_makes_the_one_that_it_waits_for_known(job: Job) -> None:
    path = job.folder / "train.py"
    path.write_text(SCRIPT)
    variables = {
        "PYTHONPATH": f"{ROOT / 'images/trainer'}:{ROOT / 'operator'}",
        "OMP_NUM_THREADS": "1",
        "TRAINMASTER_PROGRESS_TIMEOUT": "3",
        "TRAINMASTER_FIRST_STEP_TIMEOUT": "200",
    }
    agents = [job.agent(worker).start(sys.executable, str(path), **variables) for worker in range(2)]
    job.annotate(job.assignment(1, range(2)))
    stream = Stream(agents[0])
    texts, failed = evidence_and_report(stream)
    assert "long enough" in agents[0].output(), "five seconds in no collective are no hang"
    assert (failed["reason"], failed["rank"], failed["worker"]) == ("Hung", 0, 0), failed
    entered = texts[1]["collective"]
    assert "rank 1 made no progress for" in failed["error"]
    assert "the limit is failurePolicy.hang.progressSeconds 3 s" in failed["error"]
    assert "rank 0 says nothing of its own progress" in failed["error"]
    assert f"it never entered collective {entered}, in which all other ranks wait" in failed["error"]
    stream.close()
