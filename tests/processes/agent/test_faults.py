"""Under random faults, whatever is killed and whichever way an assignment comes, a group runs the next attempt
everywhere, and no rank of an attempt runs twice.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from typing import Any

from tests.signer import signed
from trainmaster_operator.agent.process import children

from .agents import Job, until

WORKERS = 3
ROUNDS = 14
RANK = 'echo "$TRAINMASTER_ATTEMPT $NODE_RANK $$" >> "$1/ranks"; exec sleep 300'


class Group:
    """Plays the job, the kubelet that restarts ended containers, and the operator that assigns attempts."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attempt = 0
        self.assignment: dict[str, Any] = {}
        for worker in range(WORKERS):
            job.agent(worker)
            self.start(worker)

    def start(self, worker: int) -> None:
        self.job.agents[worker].start("sh", "-c", RANK, "sh", str(self.job.folder))

    def restart_containers(self) -> None:
        for worker, agent in self.job.agents.items():
            if agent.process is not None and agent.process.poll() is not None:
                self.start(worker)

    def ranks(self) -> dict[int, int]:
        """Returns the pids of the present attempt, by rank."""
        lines = [line.split() for line in self.job.agents[0].lines("ranks")]
        return {int(rank): int(pid) for attempt, rank, pid in lines if int(attempt) == self.attempt}

    def until_all_run(self) -> dict[int, int]:
        def all_run() -> dict[int, int] | None:
            self.restart_containers()
            ranks = self.ranks()
            return ranks if len(ranks) == WORKERS else None

        return until(all_run, 30, f"all ranks of attempt {self.attempt} run")

    def give_out(self, way: str) -> None:
        self.attempt += 1
        self.assignment = self.job.assignment(self.attempt, range(WORKERS))
        if way != "file":
            for agent in self.job.agents.values():
                try:
                    if agent.request("POST", "/v1/assignment", self.assignment)[0] == 204:
                        break
                except OSError:
                    continue
        # The annotations come in any case, as from an operator that doesn't know which agents have received the push.
        self.job.annotate(self.assignment)


def test_every_attempt_runs_everywhere_and_once_whatever_is_killed(job: Job) -> None:
    chance = random.Random(2026)
    group = Group(job)
    group.give_out("file")
    for _ in range(ROUNDS):
        ranks = group.until_all_run()
        fault = chance.choice(["rank", "agent", "rank and agent", "leader", "hold", "none"])
        victim = chance.randrange(WORKERS)
        if "rank" in fault:
            children.send([ranks[victim]], signal.SIGKILL)
        if "agent" in fault or fault == "leader":
            job.agents[0 if fault == "leader" else victim].kill()
        if fault == "hold":
            job.annotate(signed({**group.assignment, "state": "Hold"}))
        if chance.random() < 0.5:
            group.restart_containers()
        group.give_out(chance.choice(["push", "file"]))
    last = group.until_all_run()
    counts = Counter(tuple(line.split()[:2]) for line in job.agents[0].lines("ranks"))
    assert [attempt for attempt, count in counts.items() if count > 1] == []

    def running() -> set[int]:
        return {pid for agent in job.agents.values() for pid in children.leftovers(str(agent.state_dir))}

    # While the kernel replaces a process's program (execve(2)), the process can't be found by its environment.
    until(lambda: set(last.values()) <= running(), what=f"{last} run, of {running()}")
    until(lambda: len(running()) == WORKERS, what=f"nothing of an older attempt is left in {running()}")
    for pid in last.values():
        os.kill(pid, 0)
