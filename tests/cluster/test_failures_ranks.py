"""If ranks are killed, stopped or starved, or agents killed, the job names the cause, and the next attempt costs
little.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.scenarios import Scenario, train
from trainmaster_operator.agent.process.children import process_state

# Allocates more memory than any limit here permits, and touches it.
EAT = """
if rank == 1 and not last:
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1 << 20)))
"""


def test_each_rank_killed_in_turn_is_named_and_the_group_goes_on_in_place(scenario: Scenario) -> None:
    scenario.apply(train(faults=3), workers=3)
    before = None
    for rank in range(3):
        attempt = rank + 1
        started = scenario.until_training(attempt, workers=3)
        before = before or scenario.uids()
        scenario.send(rank, started[rank].pid, signal.SIGKILL)
        scenario.until(lambda attempt=attempt: scenario.accounts == (attempt + 1, attempt, 0), f"attempt {attempt + 1}")
        pod = f"{scenario.name}-{rank}"
        failure = scenario.until(
            lambda rank=rank: next((item for item in scenario.failures if item.get("rank") == rank), None),
            f"rank {rank} is named",
        )
        assert (failure["attempt"], failure["worker"], failure["pod"]) == (attempt, rank, pod)
        assert (failure["reason"], failure["exitCode"]) == ("Signal", 137)
        assert failure["node"] == scenario.nodes()[pod]
        assert "killed by signal 9" in failure["message"]
        assert scenario.uids() == before, "the same pods"
        assert scenario.container_restarts() == [0, 0, 0]
    scenario.succeeds(attempt=4, restarts=3)
    assert [item["rank"] for item in scenario.failures] == [2, 1, 0]


@pytest.mark.torch
def test_a_rank_that_torchrun_started_is_named_too(scenario: Scenario) -> None:
    """Rank 3 is the second process of worker 1; its launcher lives on."""
    setup = 'printf "%s" "$SCRIPT" > "$TRAINMASTER_STATE_DIR/train.py"'
    script = [{"name": "SCRIPT", "value": train()}]
    scenario.apply(
        launcher="torchrun",
        processesPerWorker=2,
        setup=setup,
        command=["python3", "$(TRAINMASTER_STATE_DIR)/train.py"],
        podTemplate={"spec": {"containers": [{"name": "worker", "env": script}]}},
    )
    started = scenario.until_training(workers=4)
    scenario.send(1, started[3].pid, signal.SIGKILL)
    scenario.succeeds(attempt=2, restarts=1)
    failure = scenario.failures[0]
    assert (failure["rank"], failure["worker"], failure["reason"]) == (3, 1, "Signal"), failure
    assert failure["exitCode"] == 137


def test_an_attempt_whose_agent_was_killed_is_not_trained_twice(scenario: Scenario) -> None:
    """The kubelet restarts the container: the agent finds its saved report, and waits for another attempt."""
    scenario.apply(train(faults=2))
    started = scenario.until_training()
    before = scenario.uids()
    scenario.kill_agent(1, started[1])
    scenario.until_phase("Running", attempt=2)

    def starts() -> list[tuple[int, int]]:
        return sorted((start.attempt, start.rank) for start in scenario.starts())

    once = [(1, 0), (1, 1), (2, 0), (2, 1)]
    scenario.until(lambda: len(starts()) >= len(once), "all of attempt 2 in the logs")
    assert starts() == once
    assert scenario.uids() == before
    assert scenario.container_restarts() == [0, 1]
    failure = scenario.until(
        lambda: next((item for item in scenario.failures if item["reason"] == "AgentLost"), None),
        "the cause is settled",
    )
    assert scenario.accounts == (2, 1, 0)
    assert (failure["reason"], failure["worker"], failure["pod"]) == ("AgentLost", 1, f"{scenario.name}-1"), failure


def test_a_stopped_rank_is_found_and_named_among_those_that_wait_for_it(scenario: Scenario) -> None:
    scenario.apply(failurePolicy={"hang": {"progressSeconds": 2}})
    started = scenario.until_training()
    scenario.send(1, started[1].pid, signal.SIGSTOP)
    scenario.succeeds(attempt=2, restarts=1)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["rank"], failure["worker"], failure["exitCode"]) == ("Hung", 1, 1, 68), failure
    assert "rank 1 is stopped by a signal" in failure["message"]
    assert "hang.progressSeconds 2 s" in failure["message"]
    scenario.until(lambda: not scenario.pods(), "pods gone")
    (kept,) = scenario.client.evidence(scenario.name)
    assert (kept.attempt, kept.failure["rank"], kept.ranks[1]["state"]) == (1, 1, "T")
    assert kept.ranks.keys() == {0, 1}, "of every rank, also of those that only waited"
    assert "most recent call first" in kept.ranks[0]["text"], "a bystander prints its stacks, and isn't ended"
    assert "thread" in kept.ranks[0]["text"]
    assert kept.workers[1]["reason"] == "Hung"


def test_a_worker_that_stands_still_as_a_whole_is_named_and_its_pod_replaced(scenario: Scenario) -> None:
    """Agent and rank of worker 1 are stopped: the pod looks healthy, and only its peers notice."""
    scenario.cluster.shared.needs_embedded("a container can't stop its own first process (pid_namespaces(7))")
    limits = {"hang": {"progressSeconds": 2}, "nodes": {"lostAfterSeconds": 1}}
    scenario.apply(workers=3, failurePolicy=limits, podTemplate={"spec": {"terminationGracePeriodSeconds": 1}})
    started = scenario.until_training(workers=3)
    before = scenario.uids()
    for pid in (started[1].parent, started[1].pid):
        scenario.send(1, pid, signal.SIGSTOP)
    scenario.succeeds(attempt=2, restarts=1)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["worker"], failure["pod"]) == ("AgentLost", 1, f"{scenario.name}-1"), failure
    assert "its agent doesn't answer: no answer from worker 1; rank " in failure["message"]
    assert "the limit is failurePolicy.hang.progressSeconds 2 s" in failure["message"]
    after = scenario.uids()
    assert all(after[name] == uid for name, uid in before.items() if name in after and not name.endswith("-1"))
    scenario.until(lambda: not scenario.pods(), "pods gone")
    (kept,) = scenario.client.evidence(scenario.name)
    assert kept.ranks.keys() == {0, 2}, "how those stood that answered"
    scenario.until(lambda: process_state(started[1].pid) in "XZ", "its rank is gone")


def test_a_container_over_its_memory_limit_is_oom_killed_by_its_status(scenario: Scenario) -> None:
    """The kubelet ends the whole container with its agent, so only the container's status shows the cause."""
    scenario.apply(train(first=EAT), resources={"memory": "96Mi"})
    scenario.succeeds(attempt=2, restarts=1)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["worker"], failure["exitCode"]) == ("OOMKilled", 1, 137), failure
    assert "killed for memory" in failure["message"]


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """Makes a memory cgroup on this machine with a limit of 96 MiB (cgroups(7)); this needs the right to make one."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    folder = Path("/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/memory", f"trainmaster-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(96 << 20))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder
    deadline = time.monotonic() + 20
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_is_named_and_its_container_lives(
    scenario: Scenario, memory_cgroup: Path
) -> None:
    """The test does a container runtime's work: it puts agent and ranks of worker 1 into a memory cgroup, whose
    counters distinguish this kill from any other SIGKILL.
    """
    scenario.cluster.shared.needs_embedded("elsewhere the kernel kills the whole container (memory.oom.group)")
    enter = f'test "$NODE_RANK" = 0 || echo $PPID > {memory_cgroup}/cgroup.procs'
    scenario.apply(train(first=EAT), setup=enter)
    scenario.succeeds(attempt=2, restarts=1)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["rank"], failure["exitCode"]) == ("OOMKilled", 1, 137), failure
    assert "1 such kill in this container" in failure["message"]
    # The pods may already be ending.
    assert not any(scenario.container_restarts())
