"""Real agents diagnose hangs and failures of ranks on a GPU; two NCCL ranks share one, as two hosts to NCCL."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes.agent.agents import AGENT, Job, Stream
from trainmaster.client.diagnosis.endings import read_ending
from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.rendering import AgentConfigMap
from trainmaster_operator.rendering.agent_source import agent_command, config_map_name

ROOT = Path(__file__).parents[2]
# Variables by which the device and its libraries are found on some machines.
PASSED_ON = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH", "HIP_", "ROCR_")

BEGIN = """
import os, time
import torch
from trainloop.distributed.diagnostics import dump_stacks_on_signal
from trainloop.progress import heartbeat

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dump_stacks_on_signal(rank)
"""
STUCK = """
values = torch.ones(8, device="cuda")
for step in range(1, 100):
    if step == 20:
        torch.cuda._sleep(2**60)
    total = values.sum().item()
    heartbeat(step)
"""
# Both ranks have done step 19; rank 0 then waits for its device, which waits in a collective for rank 1.
ASLEEP = """
import torch.distributed as dist
os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo")
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
values = torch.ones(8, device="cuda")
def read_a_batch_for_ever():
    time.sleep(300)
for step in range(1, 100):
    if step == 20 and rank == 1:
        read_a_batch_for_ever()
    dist.all_reduce(values)
    total = values.sum().item()
    heartbeat(step)
"""
# Rank 1 stops after 200 steps of about 20 ms, so its agent has learnt how long a step takes.
LEARNT = (
    ASLEEP.replace("range(1, 100)", "range(1, 10000)")
    .replace("step == 20 ", "step == 200 ")
    .replace("    dist.all_reduce(values)\n", "    time.sleep(0.02)\n    dist.all_reduce(values)\n")
)
RAISED = LEARNT.replace("        read_a_batch_for_ever()", "        raise ValueError(f'at {time.time()}')")
ASSERTED = """
table = torch.nn.Embedding(10, 8).cuda()
total = table(torch.tensor([3, 100], device="cuda")).sum()
print(total.item())
"""
ILLEGAL = """
source = 'extern "C" __global__ void bad(float* p) { p[(1ull << 40) + threadIdx.x] = 1.0f; }'
values = torch.zeros(4, device="cuda")
torch.cuda._compile_kernel(source, "bad")((1, 1, 1), (32, 1, 1), [values])
print(values.sum().item())
"""
ORDINAL = """
torch.zeros(1, device="cuda:77")
"""
DUPLICATE = """
import torch.distributed as dist
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(8, device="cuda"))
"""


@pytest.fixture
def zipapp(job: Job) -> list[str]:
    """Returns the command of a pod whose agent, with its library, comes from a ConfigMap."""
    path = job.folder / "agent.pyz"
    path.write_bytes(zipapp_bytes())
    return [sys.executable, *agent_command(AgentConfigMap(config_map_name(zipapp_bytes())))[1:4], str(path)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"127.126.{os.getpid() % 250}")
    yield made
    made.end()


def start(
    job: Job, script: str, ranks: int, limits: Mapping[str, str] | None = None, agent: Sequence[str] = AGENT
) -> Stream:
    """Run a script on this many workers."""
    path = job.folder / "train.py"
    path.write_text(BEGIN + script)
    variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    variables |= {"PYTHONPATH": f"{ROOT / 'images/trainer'}:{ROOT / 'operator'}", **(limits or {})}
    agents = [job.agent(worker, **variables).start(sys.executable, str(path), agent=agent) for worker in range(ranks)]
    job.annotate(job.assignment(1, range(ranks)))
    return Stream(agents[0])


def failed(job: Job, script: str, ranks: int = 1) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Run a script on this many workers; returns the first report of a failure, and the ranks' evidence of a stall."""
    limits = {"TRAINMASTER_PROGRESS_TIMEOUT": "2", "TRAINMASTER_FIRST_STEP_TIMEOUT": "100"}
    stream = start(job, script, ranks, limits)
    evidence: dict[int, dict[str, Any]] = {}
    while True:
        line = stream.until(
            lambda line: line["type"] == "evidence" or (line.get("report") or {}).get("state") == "Failed", 60
        )
        if line["type"] == "report":
            break
        evidence |= {int(rank): data for rank, data in line["ranks"].items()}
    stream.close()
    return line["report"], evidence


def test_the_only_rank_of_a_job_waits_for_its_gpu(job: Job) -> None:
    report, evidence = failed(job, STUCK)
    assert (report["reason"], report["rank"]) == ("Hung", 0), report
    assert evidence[0]["waits"] == "device" and "pending" not in evidence[0]
    assert (evidence[0]["step"], report["error"].endswith("; it waits for its device")) == (19, True), report["error"]


def test_a_rank_that_waits_in_item_for_a_collective_is_not_the_one_that_hangs(job: Job) -> None:
    report, evidence = failed(job, ASLEEP, ranks=2)
    assert (report["reason"], report["rank"]) == ("Hung", 1), report
    assert "in read_a_batch_for_ever" in report["error"]
    assert [evidence[rank]["step"] for rank in (0, 1)] == [19, 19]
    assert evidence[0]["pending"] is True and "pending" not in evidence[1]
    assert (evidence[0]["waits"], evidence[1]["waits"]) == ("device", "nothing")
    assert evidence[0]["collective"] == evidence[1]["collective"] + 1
    for agent in job.agents.values():
        assert "preparing to dump" not in agent.output()


def test_people_learn_in_seconds_which_rank_the_others_wait_for(job: Job) -> None:
    stream = start(job, LEARNT, 2)
    stall = stream.until(lambda line: line["type"] == "stall", 90)
    print(f"stall after {time.time() - stall['since']:.1f} s: {stall}")
    assert stall["rank"] == 1 and stall["usualSeconds"] < 1, stall
    assert stall["message"].startswith("rank 1 is at train.py:"), stall
    assert "in read_a_batch_for_ever" in stall["message"], stall
    assert stall["restartSeconds"] > 5, stall
    stream.close()


def test_an_exception_beside_nccl_is_reported_as_it_is_raised(job: Job, zipapp: list[str]) -> None:
    stream = start(job, RAISED, 2, agent=zipapp)
    report = stream.until(lambda line: (line.get("report") or {}).get("state") == "Failed", 90)["report"]
    raised = re.search(r"ValueError: at ([0-9.]+)", report["error"])
    assert raised is not None and report["rank"] == 1, report
    print(f"reported {time.time() - float(raised[1]):.3f} s after the exception")
    stream.close()


@pytest.mark.parametrize(
    ("script", "ranks", "said", "cause"),
    [
        pytest.param(ASSERTED, 1, "device-side assert triggered", "ProgramError", id="a failed assertion"),
        pytest.param(
            ILLEGAL, 1, "an illegal memory access was encountered", "IllegalMemoryAccess", id="illegal access"
        ),
        pytest.param(ORDINAL, 1, "do you have enough GPUs?", "NoGpu", id="no such device"),
        pytest.param(DUPLICATE, 2, "both on CUDA device", "DuplicateGpu", id="two ranks on one GPU"),
    ],
)
def test_a_failure_is_told_in_the_gpus_words(job: Job, script: str, ranks: int, said: str, cause: str) -> None:
    report, _ = failed(job, script, ranks)
    assert (report["reason"], report["culprit"]) == ("Error", True), report
    # The part that the status keeps (reconciling/policies/attribution.py).
    lines = [line for line in report["error"].splitlines() if line.strip()][-3:]
    assert any(said in line for line in lines), report["error"]
    ending = read_ending(report["error"])
    assert ending is not None and ending.cause == cause, ending
    if script == ASSERTED:
        assert any("Assertion" in line and line.rstrip().endswith("failed.") for line in lines), report["error"]
