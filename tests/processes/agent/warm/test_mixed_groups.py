"""Workers whose ranks were started in different ways are one group; a process that was killed is no answer."""

from __future__ import annotations

import sys

import pytest

from tests.processes.agent.agents import Agent, Job, until

from .both_ways import NO_MEMORY, start, starts, without_memory

GROUP = """
import os, pathlib, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
found = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(found)
name = f"sum-{os.environ['TRAINMASTER_ATTEMPT']}-{dist.get_rank()}"
pathlib.Path(sys.argv[1], f"{name}.new").write_text(str(found.item()))
pathlib.Path(sys.argv[1], f"{name}.new").rename(pathlib.Path(sys.argv[1], name))
dist.barrier()
"""
DEAF = "this Python doesn't import sitecustomize from PYTHONPATH"


def interpreter(job: Job, worker: int, line: str) -> str:
    """A Python of all workers, whose start a line of shell comes before on one of them.

    All have it, because workers of different environments are refused.
    """
    program = job.folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$TRAINMASTER_WORKER" != {worker} ] || {line}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def start_group(job: Job, worker: int, python: str = sys.executable, **environ: str) -> Agent:
    """Start a worker of one rank, which adds its number to the other's."""
    script = job.folder / "group.py"
    script.write_text(GROUP)
    command = (str(script), str(job.folder))
    return start(job, True, *command, ranks=1, worker=worker, python=python, GLOO_SOCKET_IFNAME="lo", **environ)


def until_they_meet(job: Job, attempt: int = 1) -> None:
    sums = [job.folder / f"sum-{attempt}-{rank}" for rank in range(2)]
    agents = job.agents.values()
    until(lambda: all(path.exists() for path in sums), 60, "\n".join(agent.output() for agent in agents))
    assert [path.read_text() for path in sums] == ["3.0", "3.0"]


@pytest.mark.parametrize("without", [0, 1])
@pytest.mark.parametrize("reason", [NO_MEMORY, DEAF], ids=["no memory", "deaf"])
def test_workers_with_and_without_a_warm_process_find_each_other(job: Job, without: int, reason: str) -> None:
    python = interpreter(job, without, "unset PYTHONPATH") if reason == DEAF else sys.executable
    poor = {"TRAINMASTER_CGROUP_ROOT": str(without_memory(job))} if reason == NO_MEMORY else {}
    for worker in range(2):
        start_group(job, worker, python, **(poor if worker == without else {}))
    job.annotate(job.assignment(1, range(2)))
    until_they_meet(job)
    assert starts(job.agents[without]) == [f"attempt 1 starts cold: {reason}"]
    assert starts(job.agents[1 - without]) == ["attempt 1 starts warm"]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_probe_that_is_killed_with_its_attempt_says_nothing_of_the_python(job: Job, slow: int) -> None:
    """A processor is so slow that the attempt is stopped before the probe has answered."""
    ready = job.folder / "ready"
    python = interpreter(job, slow, f'[ "$TRAINMASTER_WARM" != probe ] || [ -e {ready} ] || exec sleep 600')
    for worker in range(2):
        start_group(job, worker, python)
    job.annotate(job.assignment(1, range(2)))
    job.agents[slow].until_state("Starting")
    until(lambda: starts(job.agents[1 - slow]), 60, "the other worker's ranks are forked")
    ready.touch()
    job.annotate(job.assignment(2, range(2)))
    until_they_meet(job, 2)
    assert [starts(agent)[-1] for agent in job.agents.values()] == ["attempt 2 starts warm"] * 2
