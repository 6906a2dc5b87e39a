"""Fifty jobs at a time run for ten minutes with a fault every second: every job ends as it should and nothing leaks.

    TRAINMASTER_SOAK_SECONDS=60 TRAINMASTER_SOAK_SEED=7 pytest -m slow tests/cluster/test_soak.py

The cluster, the operator and its API requests are real; pods and agents are `faked_workers`. A job that has ended is
deleted, with everything that it left, and a new one takes its place. At the end no more faults come, and all jobs have
to end.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.cluster.faked_agents import Agent, Script, Timings
from tests.cluster.faked_cluster import FakedCluster, faked_cluster
from trainmaster_local.inside import DeleteOptions, Exit, Fault

JOBS_AT_A_TIME = 50
NODES = 5
DURATION = float(os.environ.get("TRAINMASTER_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("TRAINMASTER_SOAK_SEED", "1"))
# The megabytes by which the operator may grow between two moments of equal load, and its maximum.
GROWTH_MB, MOST_MB = 25.0, 220.0


@dataclass
class Soak:
    """Makes the faults, from the test's thread."""

    cluster: FakedCluster
    random: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    budgets: dict[str, int] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    kills: bool = True
    # Each entry has a time and the function that then undoes a fault.
    _later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _lost: set[str] = field(default_factory=set)

    def submit(self) -> None:
        namespace = self.cluster.namespace()
        # One in five may fail only twice.
        budget = self.budgets[namespace] = 2 if self.random.random() < 0.2 else 1000
        policy = {
            "maxRestarts": budget,
            "backoff": {"initialSeconds": self.random.choice([0, 0, 1]), "maxSeconds": 4},
            "nodes": {"lostAfterSeconds": 2, "quarantineAfter": 3},
        }
        script = Script(seconds=self.random.uniform(1.0, 8.0))
        self.cluster.submit(namespace, script, workers=self.random.randint(2, 4), failurePolicy=policy)

    def collect(self) -> None:
        """Check and delete the jobs that have ended, without waiting for what they leave."""
        for namespace in [name for name in self.budgets if self.cluster.at_rest(name)]:
            status = self.cluster.status(namespace)
            phase, restarts, budget = status["phase"], status.get("restarts", 0), self.budgets.pop(namespace)
            described = f"{namespace}: {status}"
            assert restarts <= budget, described
            # A lost pod may end several attempts before the watch shows it, but counts as one disruption; and one
            # whose worker had finished ends none.
            assert status.get("disruptions", 0) or restarts >= status["attempt"] - 1, described
            assert phase == "Succeeded" or restarts == budget, described
            self.check_record(namespace)
            self.ended[phase] += 1
            self.cluster.delete(namespace)

    def check_record(self, namespace: str) -> None:
        workers = self.cluster.workers
        assert workers.overlaps == []
        runs = workers.runs(f"{namespace}/job")
        again = [key for key, count in Counter((run.pod, run.attempt) for run in runs).items() if count > 1]
        assert again == [], f"{namespace} trained an attempt twice: {again}"
        workers.forget(f"{namespace}/job")

    def strike(self) -> None:
        """Make one fault, which ends by itself within seconds."""
        faults = [self.rank_fails] * 4 + [self.container_dies, self.pod_deleted] * 2
        faults += [self.pod_deleted_by_force, self.node_lost, self.watches_dropped, self.watches_expired]
        faults += [self.api_errors, self.api_slow, self.streams_cut]
        if self.kills:
            faults += [self.operator_killed, self.second_operator]
        fault = self.random.choice(faults)
        fault()
        self.struck[fault.__name__] += 1

    def settle(self, *, all_of_it: bool = False) -> None:
        """End the faults whose time is over."""
        for entry in list(self._later):
            if all_of_it or entry[0] <= time.monotonic():
                self._later.remove(entry)
                entry[1]()

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, work))

    def _in_cluster(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self.cluster.threaded.call(run())

    def _an_agent(self) -> Agent | None:
        training = [a for a in list(self.cluster.workers.agents.values()) if a.run is not None]
        return self.random.choice(training) if training else None

    def rank_fails(self) -> None:
        agent = self._an_agent()
        reason, code = self.random.choice([("Error", 1), ("Signal", 139), ("OOMKilled", 137), ("Hung", 68)])
        if agent is not None:
            self._in_cluster(lambda: agent.end("Failed", reason=reason, exitCode=code, error="on purpose"))

    def container_dies(self) -> None:
        agent = self._an_agent()
        if agent is not None:
            exit_ = Exit(137, time.time(), signal=9, out_of_memory=self.random.random() < 0.5)
            self._in_cluster(lambda: agent.runtime.end(agent.container, exit_))

    def pod_deleted(self, grace: int | None = None) -> None:
        agent = self._an_agent()
        if agent is not None:
            options = DeleteOptions(grace_period=grace)
            self.cluster.threaded.call(self.cluster.api.delete("pods", agent.pod, agent.namespace, options=options))

    def pod_deleted_by_force(self) -> None:
        self.pod_deleted(0)

    def node_lost(self) -> None:
        if self._lost:
            return
        name = self.random.choice(list(self.cluster.threaded.cluster.kubelets))
        self._lost.add(name)
        self.cluster.threaded.call(self.cluster.threaded.cluster.lose_node(name))

        def recover() -> None:
            self.cluster.threaded.call(self.cluster.threaded.cluster.recover_node(name))
            self._lost.discard(name)

        self._after(self.random.uniform(1.0, 8.0), recover)

    def watches_dropped(self) -> None:
        self._in_cluster(self.cluster.threaded.cluster.drop_watches)

    def watches_expired(self) -> None:
        self._in_cluster(self.cluster.api.storage.compact)
        self.watches_dropped()

    def _fault(self, fault: Fault) -> None:
        faults = self.cluster.threaded.cluster.faults
        faults.add(fault)
        self._after(self.random.uniform(0.5, 3.0), lambda: faults.rules.remove(fault))

    def api_errors(self) -> None:
        code = self.random.choice([409, 429, 500, 503])
        after = code == 500 and self.random.random() < 0.5
        verb = self.random.choice(["patch", "create", "delete", "get", "list"])
        self._fault(Fault(verb=verb, code=code, probability=0.5, after=after))

    def api_slow(self) -> None:
        self._fault(Fault(latency=self.random.uniform(0.1, 1.0), probability=0.5))

    def streams_cut(self) -> None:
        workers = self.cluster.workers
        workers.reachable = False
        self._in_cluster(workers.hang_up)

        def heal() -> None:
            workers.reachable = True

        self._after(self.random.uniform(0.5, 5.0), heal)

    def operator_killed(self) -> None:
        for operator in self.cluster.operators:
            operator.kill()
        self.cluster.operators.clear()

        def start() -> None:
            if not self.cluster.operators:
                self.cluster.start_operator()

        self._after(self.random.uniform(0.0, 3.0), start)

    def second_operator(self) -> None:
        if len(self.cluster.operators) == 1:
            second = self.cluster.start_operator()

            def stop() -> None:
                second.kill()
                if second in self.cluster.operators:
                    self.cluster.operators.remove(second)

            self._after(self.random.uniform(1.0, 4.0), stop)

    def only_operator(self) -> psutil.Process:
        assert len(self.cluster.operators) == 1
        return psutil.Process(self.cluster.operators[0].pid)

    def tasks(self) -> int:
        """Returns the operator's asyncio tasks."""
        before = self.cluster.log.stat().st_size
        self.only_operator().send_signal(10)
        found: list[str] = []

        def counted() -> bool:
            found[:] = re.findall(r"tasks: (\d+)", self.cluster.log.read_bytes()[before:].decode(errors="replace"))
            return bool(found)

        self.cluster.until(counted, 10, lambda: "the number of tasks")
        return int(found[0])


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    timings = Timings(unacknowledged=1.0, bystander=1.0, forgotten=6.0, rendezvous=5.0)
    with faked_cluster(tmp_path, nodes=NODES, timings=timings) as cluster:
        yield Soak(cluster, random.Random(SEED))


@pytest.mark.slow
@pytest.mark.timeout(DURATION * 2 + 300)
def test_fifty_jobs_and_a_fault_every_second(soak: Soak) -> None:
    soak.cluster.start_operator()
    soak.cluster.until(
        lambda: soak.cluster.log.exists() and "Serving" in soak.cluster.log.read_text(), 30, lambda: "no operator"
    )
    idle = soak.tasks()
    for _ in range(JOBS_AT_A_TIME):
        soak.submit()
    began = struck = time.monotonic()
    middle = 0.0
    while (now := time.monotonic()) < began + DURATION:
        soak.settle()
        soak.collect()
        while len(soak.budgets) < JOBS_AT_A_TIME:
            soak.submit()
        if now - struck >= 1.0:
            struck = now
            soak.strike()
        # In the second half the operator isn't restarted, so that it can show a leak.
        if soak.kills and now > began + DURATION / 2:
            soak.kills = False
        if not middle and now > began + DURATION * 0.7 and len(soak.cluster.operators) == 1:
            middle = soak.only_operator().memory_info().rss / 1e6
        time.sleep(0.02)
    soak.settle(all_of_it=True)
    end = soak.only_operator().memory_info().rss / 1e6

    def all_ended() -> bool:
        soak.settle()
        soak.collect()
        return not soak.budgets

    soak.cluster.until(
        all_ended, 120, lambda: "\n\n".join(soak.cluster.describe(name) for name in list(soak.budgets)[:3])
    )
    print(f"struck {dict(soak.struck)}, ended {dict(soak.ended)}, memory {middle:.0f} then {end:.0f} MB")
    assert soak.ended["Succeeded"] >= JOBS_AT_A_TIME
    assert end < MOST_MB
    if DURATION >= 300:
        assert end - middle < GROWTH_MB
    soak.cluster.until(lambda: soak.tasks() <= idle, 30, lambda: f"{soak.tasks()} tasks, {idle} when idle")
    assert soak.cluster.workers.agents == {}
