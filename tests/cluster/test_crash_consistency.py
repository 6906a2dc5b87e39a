"""The operator is killed around each of its writes, and each of its writes fails in every way: jobs end as they should.

First the writes of some jobs are recorded: a healthy one, one with a failed rank, one with a deleted pod, and the last
two again with ranks that continue. Then the job runs once for each write and each way to disturb it. Afterwards, the
job must have ended as it should, with exactly its restarts and disruptions. By the ranks' own record, no two attempts
trained at the same time, and no worker ran an attempt twice. Nothing is left once the job is deleted.

Everything is real but the pods: they and their agents are `faked_workers`, so that hundreds of cases run in minutes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cluster.faked_agents import Fail, Script
from tests.cluster.faked_cluster import JOBS, WRITES, FakedCluster, faked_cluster
from trainmaster_local.config import KubeletTimings
from trainmaster_local.inside import Fault

Write = tuple[str, str, int]
"""Verb, resource, and the how-manieth of its kind in the job."""

SCRIPTS = {
    "healthy": Script(seconds=0.1),
    "rank failed": Script(seconds=0.1, faults=[Fail(attempt=1, worker=1, after=0.03)]),
    # Until its pod is deleted, which happens once the job is Running.
    "pod deleted": Script(seconds=0.1, first_seconds=3600.0),
    # The others train on until the lost one joins them, which the operator starts after two seconds at the earliest.
    "rank left out": Script(seconds=3.0, faults=[Fail(attempt=1, worker=1, after=0.3)], able=True),
    "pod left out": Script(seconds=3.0, first_seconds=3600.0, able=True),
}
# Without streams both failures are exits of a container, so the second one's pod is replaced (see `backing_off`).
REPLACED = "pod replaced"
BACKING_OFF = {REPLACED: Script(seconds=0.1, faults=[Fail(attempt=n, worker=1, after=0.03) for n in (1, 2)])}
# Restarts and disruptions. The stream is faster than the watch: if a rank reports its broken connection before the
# watch shows that a pod is gone, the next attempt starts with that pod. Its loss is the same disruption if the
# pod is known to be the same one, and otherwise a second one.
ENDS = {
    "healthy": {(0, 0)},
    "rank failed": {(1, 0)},
    "pod deleted": {(0, 1), (0, 2)},
    "rank left out": {(1, 0)},
    "pod left out": {(0, 1), (0, 2)},
    REPLACED: {(2, 0)},
}
ANSWERS = {
    "409": Fault(code=409),
    "429": Fault(code=429, retry_after=1),
    "500": Fault(code=500),
    "500 although it was carried out": Fault(code=500, after=True),
    "slow": Fault(latency=1.0),
}
# Written before and after the steps that a job's correctness depends on; `make test` kills the operator there.
VITAL = (f"{JOBS}/status", "statefulsets.apps", "pods")
SECONDS = 150.0


@dataclass
class Case:
    """Runs one job with one write disturbed. The cluster's thread counts, the test's thread waits."""

    scenario: str
    namespace: str
    strike: Write | None = None
    how: str = ""
    struck: bool = False
    deleted: bool = False
    writes: list[Write] = field(default_factory=list)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{self.scenario}, {self.how} {self.strike} in {self.namespace}"


@dataclass
class Disturber:
    """Records each case's writes as a hook of the API server, and strikes."""

    cluster: FakedCluster
    cases: dict[str, Case] = field(default_factory=dict)
    killed: threading.Event = field(default_factory=threading.Event)

    def __call__(self, verb: str, resource: str, name: str, namespace: str) -> Fault | None:
        case = self.cases.get(namespace)
        if case is None or verb not in WRITES:
            return None
        case.seen[verb, resource] += 1
        write = (verb, resource, case.seen[verb, resource])
        case.writes.append(write)
        if case.struck or write != case.strike:
            return None
        case.struck = True
        if case.how == "killed before":
            self.kill()
            return Fault(code=503)
        if case.how == "killed after":
            self.cluster.threaded.cluster.faults.carried_out = self.kill
            return Fault(code=500, after=True)
        return ANSWERS[case.how]

    def kill(self) -> None:
        for operator in self.cluster.operators:
            operator.kill()
        self.killed.set()

    def look(self) -> None:
        """Restart a dead operator, and delete the pods that are due. The test's thread calls this."""
        if self.killed.is_set():
            self.killed.clear()
            self.cluster.operators.clear()
            self.cluster.start_operator()
        for case in self.cases.values():
            if case.scenario.startswith("pod ") and case.scenario != REPLACED and not case.deleted:
                status = self.cluster.status(case.namespace)
                if (status.get("phase"), status.get("attempt")) == ("Running", 1):
                    case.deleted = True
                    self.cluster.threaded.call(self.cluster.api.delete("pods", "job-1", case.namespace))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakedCluster]:
    with faked_cluster(tmp_path_factory.mktemp("crash")) as made:
        yield made


@pytest.fixture
def disturber(world: FakedCluster) -> Iterator[Disturber]:
    made = Disturber(world)
    world.threaded.cluster.faults.hook = made
    yield made
    world.threaded.cluster.faults.clear()
    world.stop_operators()


def begin(disturber: Disturber, scenario: str, strike: Write | None = None, how: str = "") -> Case:
    namespace = disturber.cluster.namespace()
    case = disturber.cases[namespace] = Case(scenario, namespace, strike, how)
    disturber.cluster.submit(namespace, (SCRIPTS | BACKING_OFF)[scenario])
    return case


def finish(disturber: Disturber, case: Case) -> None:
    """Wait for the job's end, restart the operator whenever it was killed, and then check."""
    cluster = disturber.cluster

    def ended() -> bool:
        disturber.look()
        return cluster.at_rest(case.namespace)

    cluster.until(ended, SECONDS, lambda: f"{case}: {cluster.describe(case.namespace)}")
    status = cluster.status(case.namespace)
    attempt, counts = status["attempt"], (status.get("restarts", 0), status.get("disruptions", 0))
    assert status["phase"] == "Succeeded", f"{case}: {status}"
    # A lost pod may end several attempts before the watch shows it, but counts as one disruption.
    # Ranks that join start another attempt.
    more = bool(counts[1]) or SCRIPTS[case.scenario].able if case.scenario in SCRIPTS else False
    assert attempt == 1 + sum(counts) or (more and attempt > 1 + sum(counts)), f"{case}: {status}"
    assert counts in ENDS[case.scenario], f"{case}: {status}"
    check_record(cluster, case, status)
    cluster.delete(case.namespace)


def check_record(cluster: FakedCluster, case: Case, status: Mapping[str, Any]) -> None:
    """Check the ranks' own record of what they did."""
    assert cluster.workers.overlaps == []
    runs = cluster.workers.runs(f"{case.namespace}/job")
    again = [key for key, count in Counter((run.pod, run.attempt) for run in runs).items() if count > 1]
    assert again == [], f"{case}: trained the same attempt twice: {again}"
    # A rank that finishes before it learns of a continued attempt has finished in that, too.
    last = status["attempt"] if status.get("continues") is None else status["continues"]
    assert max(run.attempt for run in runs if run.joined is not None) >= last, f"{case}: {runs}"
    assert all(run.stopped is not None for run in runs), f"{case}: {runs}"


def recorded(disturber: Disturber, scenario: str) -> list[Write]:
    """Returns the writes of an undisturbed job."""
    case = begin(disturber, scenario)
    finish(disturber, case)
    return list(case.writes)


def kill_around(disturber: Disturber, scenario: str, writes: Sequence[Write], how: str) -> int:
    """Run the job once for each write, one after the other; returns how many kills struck."""
    cases = []
    for write in writes:
        case = begin(disturber, scenario, write, how)
        finish(disturber, case)
        cases.append(case)
    return sum(case.struck for case in cases)


def answer(disturber: Disturber, scenario: str, writes: Sequence[Write], answers: Sequence[str]) -> int:
    """Run a job for each write and each answer, all at once; returns how many struck."""
    cases = [begin(disturber, scenario, write, how) for write in writes for how in answers]
    for case in cases:
        finish(disturber, case)
    return sum(case.struck for case in cases)


@pytest.mark.parametrize("scenario", ["rank failed", "rank left out"])
@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_killed_around_a_vital_write_of_a_job_with_a_failed_rank(disturber: Disturber, how: str, scenario: str) -> None:
    disturber.cluster.start_operator()
    writes = [write for write in recorded(disturber, scenario) if write[1] in VITAL]
    # Only some; the `slow` tests cover all of them.
    chosen = writes[how == "killed after" :: 3 if SCRIPTS[scenario].able else 2]
    assert kill_around(disturber, scenario, chosen, how) >= len(chosen) // 2


@pytest.mark.parametrize(("scenario", "worker"), [("rank left out", 1), ("pod left out", 1)])
def test_the_others_are_never_stopped(disturber: Disturber, scenario: str, worker: int) -> None:
    disturber.cluster.start_operator()
    case = begin(disturber, scenario)
    cluster = disturber.cluster
    job = f"{case.namespace}/job"

    def ended() -> bool:
        disturber.look()
        return cluster.at_rest(case.namespace)

    cluster.until(ended, SECONDS, lambda: f"{case}: {cluster.describe(case.namespace)}")
    others = [run for run in cluster.workers.runs(job) if run.worker != worker]
    assert {(run.worker, run.state) for run in others if run.attempt < 3} == {(0, "Continued")}
    assert [run.state for run in others if run.attempt == 3] == ["Finished"]
    status = cluster.status(case.namespace)
    assert (status["phase"], status["attempt"], status["continues"]) == ("Succeeded", 3, 1)
    finish(disturber, case)


def test_writes_that_fail_in_every_way(disturber: Disturber) -> None:
    disturber.cluster.start_operator()
    writes = recorded(disturber, "pod deleted")
    struck = answer(disturber, "pod deleted", writes[::3], list(ANSWERS))
    # Under load several changes come together and cost fewer writes.
    assert struck >= len(writes[::3]) * len(ANSWERS) // 2


@pytest.fixture
def backing_off(world: FakedCluster) -> Iterator[None]:
    """Runs without streams, and with kubelets that wait as long as Kubernetes' do."""
    kubelets = list(world.threaded.cluster.kubelets.values())
    before = [kubelet.timings for kubelet in kubelets]
    world.workers.reachable = False
    for kubelet in kubelets:
        kubelet.timings = KubeletTimings()
    yield
    world.workers.reachable = True
    for kubelet, timings in zip(kubelets, before, strict=True):
        kubelet.timings = timings


def test_killed_around_the_replacing_of_a_pod(disturber: Disturber, backing_off: None) -> None:
    """The deletion isn't a disruption even if a previous operator made it."""
    disturber.cluster.start_operator()
    writes = recorded(disturber, REPLACED)
    (deletion,) = [write for write in writes if write[:2] == ("delete", "pods")]
    status = [write for write in writes[: writes.index(deletion)] if write[1] == f"{JOBS}/status"][-1]
    strikes = [(status, "killed after"), (deletion, "killed before"), (deletion, "killed after")]
    for write, how in strikes:
        assert kill_around(disturber, REPLACED, [write], how) == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_killed_around_every_write_of_a_job_with_a_replaced_pod(
    disturber: Disturber, backing_off: None, how: str
) -> None:
    disturber.cluster.start_operator()
    writes = recorded(disturber, REPLACED)
    assert kill_around(disturber, REPLACED, writes, how) >= len(writes) // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_write_of_a_job_with_a_replaced_pod_fails_in_every_way(disturber: Disturber, backing_off: None) -> None:
    disturber.cluster.start_operator()
    writes = recorded(disturber, REPLACED)
    for how in ANSWERS:
        assert answer(disturber, REPLACED, writes, [how]) >= len(writes) // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCRIPTS)
@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_killed_around_every_write(disturber: Disturber, scenario: str, how: str) -> None:
    disturber.cluster.start_operator()
    writes = recorded(disturber, scenario)
    assert kill_around(disturber, scenario, writes, how) >= len(writes) // 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCRIPTS)
def test_every_write_fails_in_every_way(disturber: Disturber, scenario: str) -> None:
    disturber.cluster.start_operator()
    writes = recorded(disturber, scenario)
    for how in ANSWERS:
        # Under load several changes come together and cost fewer writes.
        assert answer(disturber, scenario, writes, [how]) >= len(writes) // 2


def all_scenarios(disturber: Disturber, times: int) -> None:
    cases = [begin(disturber, scenario) for scenario in SCRIPTS for _ in range(times)]
    for case in cases:
        finish(disturber, case)


def test_two_operators_at_once(disturber: Disturber) -> None:
    """Neither has a lease, as for a moment when one was paused and doesn't know that it has lost its lease.

    One sees the other's status before its own watches have shown the pods that it names (`lookups`).
    """
    disturber.cluster.start_operator()
    disturber.cluster.start_operator()
    all_scenarios(disturber, 3)


def test_watches_that_end_all_the_time_and_expire(disturber: Disturber) -> None:
    faults = disturber.cluster.threaded.cluster.faults
    faults.add(Fault(verb="watch", code=410, probability=0.2))
    faults.add(Fault(verb="watch", drop=0.3))
    disturber.cluster.start_operator()
    all_scenarios(disturber, 3)


@pytest.mark.parametrize("seed", [1, 2])
def test_events_that_come_twice_late_or_never(disturber: Disturber, seed: int) -> None:
    disturber.cluster.start_operator(disorder=seed, resync_seconds=1.0)
    all_scenarios(disturber, 2)


def test_the_operator_is_killed_while_nothing_can_be_read(disturber: Disturber) -> None:
    """Its successor waits until lists are answered, and decides nothing on half of the objects."""
    disturber.cluster.start_operator()
    case = begin(disturber, "rank failed")
    faults = disturber.cluster.threaded.cluster.faults
    for resource in ("pods", "statefulsets.apps"):
        faults.add(Fault(verb="list", resource=resource, code=503, count=1))
    disturber.kill()
    finish(disturber, case)
    assert not any(fault.count for fault in faults.rules)
