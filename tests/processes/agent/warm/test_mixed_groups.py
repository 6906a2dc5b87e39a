"""Workers whose ranks started in different ways form one group; a killed process doesn't count as an answer."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes.agent.agents import Agent, Job, until
from trainmaster_operator.agent.process import children

from .both_ways import NO_MEMORY, start, starts, without_memory

GROUP = """
import os, pathlib, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
found = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(found)
name = f"sum-{os.environ['TRAINMASTER_ATTEMPT']}-{dist.get_rank()}"
pathlib.Path(sys.argv[1], f"{name}.new").write_text(str(found.item()))
pathlib.Path(sys.argv[1], f"{name}.new").rename(pathlib.Path(sys.argv[1], name))
dist.barrier()
while True:
    time.sleep(0.05)
"""
DEAF = "this Python doesn't import sitecustomize from PYTHONPATH"


def interpreter(job: Job, line: str) -> str:
    """Makes a Python whose start is preceded by a line of shell.

    All workers use it, because workers with different environments are refused.
    """
    program = job.folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{line}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def start_group(job: Job, worker: int, python: str = sys.executable, **environ: str) -> Agent:
    """Start a worker of one rank, which adds its number to the other's."""
    script = job.folder / "group.py"
    if not script.exists():
        # Running agents compare its content.
        script.write_text(GROUP)
    command = (str(script), str(job.folder))
    return start(job, True, *command, ranks=1, worker=worker, python=python, GLOO_SOCKET_IFNAME="lo", **environ)


def until_they_meet(job: Job, attempt: int = 1) -> None:
    sums = [job.folder / f"sum-{attempt}-{rank}" for rank in range(2)]
    try:
        until(lambda: all(path.exists() for path in sums), 90)
    except AssertionError:
        said = "\n".join(f"worker {number} printed:\n{agent.output()}" for number, agent in job.agents.items())
        raise AssertionError(f"the ranks of attempt {attempt} don't meet; {said}") from None
    assert [path.read_text() for path in sums] == ["3.0", "3.0"]


@pytest.mark.parametrize(
    ("without", "reason"),
    [(0, NO_MEMORY), (1, NO_MEMORY), (1, DEAF)],
    ids=["the first has no memory", "the second has no memory", "the second has another Python"],
)
def test_workers_with_and_without_a_warm_process_find_each_other(job: Job, without: int, reason: str) -> None:
    python = (
        interpreter(job, f'[ "$TRAINMASTER_WORKER" != {without} ] || unset PYTHONPATH')
        if reason == DEAF
        else sys.executable
    )
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
    is_probe = f'[ "$TRAINMASTER_WORKER $TRAINMASTER_WARM" = "{slow} probe" ]'
    python = interpreter(job, f"! {is_probe} || [ -e {ready} ] || exec sleep 600")
    for worker in range(2):
        start_group(job, worker, python)
    job.annotate(job.assignment(1, range(2)))
    job.agents[slow].until_state("Starting")
    until(lambda: starts(job.agents[1 - slow]), 60, "the other worker's ranks are forked")
    ready.touch()
    job.annotate(job.assignment(2, range(2)))
    until_they_meet(job, 2)
    assert [starts(agent)[-1] for agent in job.agents.values()] == ["attempt 2 starts warm"] * 2


KILLS = 200
QUOTA_US, PERIOD_US = 50_000, 100_000
"""Half a processor for each pod, as with `cpu: {limit: 500m}`."""
SLOW_PROBE = '[ "$TRAINMASTER_WARM" != probe ] || sleep 0.3'


@contextmanager
def slow_pod(name: str) -> Iterator[Path | None]:
    """Makes a cgroup with half a processor; None if this machine doesn't allow that."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    folder = (v1 if v1.is_dir() else v2) / name
    try:
        folder.mkdir()
        if v1.is_dir():
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            (folder / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), what="the pod's processes are gone")
        folder.rmdir()


class Pods:
    """Runs a job's two pods, which are deleted and recreated with nothing of the old ones."""

    def __init__(self, job: Job, groups: list[Path | None]) -> None:
        self._job = job
        self._groups = groups
        self._python = interpreter(job, SLOW_PROBE)
        self._template = job.assignment(1, range(2))
        self.uids = ["", ""]
        self.killed = 0
        for worker in range(2):
            self._make(worker)

    def _make(self, worker: int) -> None:
        """Start a pod, which begins its template's attempt."""
        self.uids[worker] = f"uid-{worker}-{self.killed}"
        agent = start_group(self._job, worker, self._python, TRAINMASTER_POD_UID=self.uids[worker])
        group = self._groups[worker]
        if group is not None and agent.process is not None:
            (group / "cgroup.procs").write_text(str(agent.process.pid))
        agent.annotate(self._template)

    def replace(self, worker: int, *, gracefully: bool) -> None:
        """Delete a pod, and create its successor."""
        agent = self._job.agents[worker]
        assert agent.process is not None
        if gracefully:
            agent.process.send_signal(signal.SIGTERM)
            agent.exit_code(60)
        agent.kill()
        until(lambda: not self._kill_rest(agent), what="nothing is left of the pod")
        self.killed += 1
        agent.folder.rename(agent.folder.with_name(f"deleted-{self.killed}"))
        self._make(worker)

    @staticmethod
    def _kill_rest(agent: Agent) -> list[int]:
        rest = children.leftovers(str(agent.state_dir))
        children.send(rest, signal.SIGKILL)
        return rest


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_pods_that_are_deleted_at_any_moment_of_a_start_on_a_slow_processor_meet_again(job: Job) -> None:
    """The group recovers each time, in the same attempt that was started for it."""
    with slow_pod(f"trainmaster-{os.getpid()}-0") as first, slow_pod(f"trainmaster-{os.getpid()}-1") as second:
        try:
            _delete_pods(job, Pods(job, [first, second]))
        finally:
            job.end()


def _delete_pods(job: Job, pods: Pods) -> None:
    began, attempt, slowest = time.monotonic(), 1, 0.0
    until_they_meet(job)
    whole = time.monotonic() - began
    while pods.killed < KILLS:
        victim, gracefully = pods.killed % 2, pods.killed % 3 == 0
        pods.replace(victim, gracefully=gracefully)
        # In this order the moments are spread over a whole start, however many there are.
        time.sleep(whole * (pods.killed * 0.618 % 1))
        if pods.killed % 5 < 2:
            continue
        attempt += 1
        began = time.monotonic()
        job.annotate(job.assignment(attempt, range(2), uids=pods.uids))
        until_they_meet(job, attempt)
        slowest = max(slowest, time.monotonic() - began)
        if attempt % 10 == 0:
            print(
                f"{pods.killed} pods killed, {attempt - 1} attempts met; the slowest took {slowest:.1f} s", flush=True
            )
