"""Random histories: whatever happens in whatever order, the invariants of architecture.md hold, and the job ends."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.reconciling.world import World
from tests.unit.reconciling.world_operator import Operator
from tests.unit.reconciling.world_pods import Room
from trainmaster.api.v1alpha1 import JobStatus

WORKERS = st.integers(0, 2)
FAULTS = st.sampled_from([("Error", 1), ("OOMKilled", 137), ("Signal", 137), ("Hung", 68)])


class History(RuleBasedStateMachine):
    """Every rule is one step of one part of the world, or a fault."""

    world: World
    rival: Operator | None

    @initialize(
        workers=st.integers(2, 3),
        restarts=st.integers(0, 3),
        back_off=st.sampled_from([0, 3]),
        skews=st.tuples(*[st.sampled_from([0.0, -4.0, 4.0, 90.0])] * 3),
        followed=st.booleans(),
        policy=st.sampled_from(["AllWorkers", "RankZero"]),
        begun=st.booleans(),
        elastic=st.booleans(),
    )
    def begin(
        self,
        workers: int,
        restarts: int,
        back_off: int,
        skews: tuple[float, float, float],
        followed: bool,
        policy: str,
        begun: bool,
        elastic: bool,
    ) -> None:
        spec: dict[str, Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 4}} if elastic else {}
        self.world = World(
            workers,
            skews,
            **spec,
            failurePolicy={"maxRestarts": restarts, "backoff": {"initialSeconds": back_off, "maxSeconds": 10}},
            successPolicy=policy,
        )
        self.world.followed = followed
        self.rival = None
        if begun:
            for _ in range(6):
                self.world.round(0.1)

    @rule(dies_after=st.one_of(st.none(), st.integers(0, 6)))
    def operator_passes(self, dies_after: int | None) -> None:
        self._pass(dies_after)

    def _pass(self, dies_after: int | None) -> None:
        if not self.world.operator.run_pass(self.world, dies_after):
            self.world.restart_operator(self.world.operator.clock)

    @rule(worker=WORKERS)
    def watch_shows_a_pod(self, worker: int) -> None:
        self.world.show(self.world.operator, f"bert-{worker}")

    @rule()
    def watch_shows_the_job(self) -> None:
        self.world.show_job(self.world.operator)

    @rule()
    def stream_brings_reports(self) -> None:
        self.world.step_stream(self.world.operator)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.3, 2.5, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def controller_steps(self) -> None:
        self.world.step_controller()

    @rule(worker=WORKERS)
    def kubelet_steps(self, worker: int) -> None:
        self.world.step_kubelet(f"bert-{worker}")

    @rule(worker=WORKERS)
    def agent_steps(self, worker: int) -> None:
        self.world.agents.step(f"bert-{worker}")

    @rule(rounds=st.integers(1, 6), seconds=st.sampled_from([0.1, 0.5]))
    def all_goes_well_for_a_while(self, rounds: int, seconds: float) -> None:
        for _ in range(rounds):
            self.world.round(seconds)

    @rule(worker=WORKERS, fault=FAULTS)
    def rank_fails(self, worker: int, fault: tuple[str, int]) -> None:
        self.world.fail_rank(worker, *fault)

    @rule(worker=WORKERS, fault=FAULTS, dies_after=st.one_of(st.none(), st.integers(0, 6)))
    def rank_fails_into_back_off(self, worker: int, fault: tuple[str, int], dies_after: int | None) -> None:
        """It is reported by exiting, not for the first time: random steps rarely get as far within the wait."""
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is None or pod.ranks is None:
            return
        self.world.followed, pod.restarts = False, max(pod.restarts, 1)
        self.world.fail_rank(worker, *fault)
        self.world.agents.step(pod.name)
        self.world.sync(self.world.operator)
        self._pass(dies_after)

    @rule(worker=WORKERS, reason=st.sampled_from(["Error", "OOMKilled"]))
    def container_dies(self, worker: int, reason: str) -> None:
        self.world.kill_container(worker, reason)

    @rule(worker=WORKERS)
    def a_worker_stands_still(self, worker: int) -> None:
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is not None and pod.running:
            pod.frozen = True

    @rule(worker=WORKERS)
    def its_probe_ends_a_worker_that_stands_still(self, worker: int) -> None:
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is not None:
            self.world.probe(pod)

    @rule()
    def the_kubelets_events_expire(self) -> None:
        self.world.kills.clear()

    @rule(worker=WORKERS, force=st.booleans())
    def pod_is_deleted(self, worker: int, force: bool) -> None:
        self.world.delete_pod(f"bert-{worker}", force=force)

    @rule(worker=WORKERS)
    def pod_is_evicted(self, worker: int) -> None:
        self.world.evict_pod(f"bert-{worker}")

    @rule(worker=WORKERS)
    def annotation_file_becomes_late(self, worker: int) -> None:
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is not None:
            pod.late = True

    @rule()
    def stream_is_cut_or_comes_back(self) -> None:
        self.world.followed = not self.world.followed

    @rule(seconds=st.sampled_from([-3000.0, -1.0, 1.0, 40.0]))
    def clock_jumps(self, seconds: float) -> None:
        self.world.operator.clock += seconds

    @rule(clock=st.sampled_from([0.0, -10.0, 10.0]))
    def operator_is_replaced(self, clock: float) -> None:
        self.world.restart_operator(clock)

    @rule(suspended=st.booleans())
    def user_suspends_or_resumes(self, suspended: bool) -> None:
        if self.world.spec.run_policy.suspend != suspended:
            self.world.edit(runPolicy={"suspend": suspended})

    @rule(workers=st.integers(1, 4))
    def user_scales(self, workers: int) -> None:
        if self.world.spec.elastic is not None and self.world.workers != workers:
            self.world.edit(workers=workers)

    @rule(worker=WORKERS)
    def a_worker_finds_no_node_or_does_again(self, worker: int) -> None:
        self.world.without_room ^= {worker}

    @rule()
    def somebody_deletes_the_set(self) -> None:
        self.world.child = None
        self.world.replicas = 0

    @precondition(lambda self: self.rival is None)
    @rule()
    def a_second_operator_takes_itself_for_the_leader(self) -> None:
        self.rival = copy.copy(self.world.operator)
        self.rival.pods = dict(self.rival.pods)
        self.rival.reports = dict(self.rival.reports)

    @precondition(lambda self: self.rival is not None)
    @rule(worker=WORKERS, stays=st.booleans())
    def the_second_operator_passes(self, worker: int, stays: bool) -> None:
        assert self.rival is not None
        self.world.show(self.rival, f"bert-{worker}")
        self.rival.run_pass(self.world)
        if not stays:
            self.rival = None

    @invariant()
    def all_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.without_room.clear()
            self.world.reattribute()


THOROUGH = os.environ.get("TRAINMASTER_SLOW") == "1"


@pytest.mark.timeout(3600 if THOROUGH else 180)
class TestHistories(History.TestCase):  # type: ignore[misc,valid-type]
    """Derandomized, so that a run of the tests says the same each time; TRAINMASTER_SLOW=1 looks for new histories."""

    settings = settings(
        max_examples=3000 if THOROUGH else 3 * settings.default.max_examples,
        stateful_step_count=60 if THOROUGH else 40,
        derandomize=not THOROUGH,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def training(world: World) -> World:
    """Run on until all ranks have joined."""
    for _ in range(50):
        if world.pods and all(pod.joined for pod in world.pods.values()):
            return world
        world.round(0.1)
    raise AssertionError(f"not training: {world.status}")


def test_a_job_without_faults_ends_in_its_first_attempt_with_few_writes() -> None:
    world = World()
    world.reattribute()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)
    assert (world.status.restarts, world.status.disruptions) == (0, 0)
    assert world.writes.count("apply Service") == 1
    assert world.writes.count("apply StatefulSet") == 2
    assert "annotate" not in world.writes
    assert world.writes[:3] == ["status", "apply Service", "apply StatefulSet"]


@pytest.mark.parametrize("followed", [True, False])
def test_workers_that_stand_still_together_cost_one_restart(followed: bool) -> None:
    """The kubelets' probes end them one after the other, and their events expire."""
    world = World(workers=3)
    world.followed = followed
    pods = list(training(world).pods.values())
    for pod in pods:
        pod.frozen = True
    for pod in pods:
        world.probe(pod)
        for _ in range(8):
            world.round()
    world.kills.clear()
    world.reattribute()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Succeeded", 2, 1)


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("reason", ["Error", "Signal", "OOMKilled"])
def test_a_failed_rank_costs_one_restart_by_either_way_of_reporting(followed: bool, reason: str) -> None:
    world = World()
    world.followed = followed
    before = {name: pod.uid for name, pod in training(world).pods.items()}
    world.fail_rank(1, reason, 137)
    for _ in range(20):
        world.round()
    assert {name: pod.uid for name, pod in world.pods.items()} in (before, {})
    world.reattribute()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Succeeded", 2, 1)
    assert (world.status.failures[0].worker, world.status.failures[0].reason) == (1, reason)


@pytest.mark.parametrize("followed", [True, False])
def test_a_deleted_pod_costs_no_restart_by_either_way_of_reporting(followed: bool) -> None:
    world = World()
    world.followed = followed
    training(world).delete_pod("bert-0")
    world.reattribute()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)
    assert (world.status.restarts, world.status.disruptions) == (0, 1)


@pytest.mark.parametrize("followed", [True, False])
def test_a_killed_container_is_found_by_either_way_of_reporting(followed: bool) -> None:
    world = World()
    world.followed = followed
    training(world).kill_container(1, "OOMKilled")
    world.reattribute()
    assert (world.status.phase, world.status.restarts) == ("Succeeded", 1)
    assert world.status.failures[0].reason == "OOMKilled"


class TestBackOffWithoutStreams:
    """Every failure is reported by an exit, and the kubelet makes the second one of a pod wait 10 s, then 20, 40 …"""

    def world(self, failures: int = 3) -> World:
        world = World(failurePolicy={"maxRestarts": failures})
        world.followed = False
        world.endless = True
        return training(world)

    def fail(self, world: World) -> float:
        """Seconds from a rank's end to the next attempt's training."""
        failed, since = world.status.attempt, world.now
        world.fail_rank(1, "Error", 1)
        for _ in range(200):
            world.round(0.1)
            if world.status.attempt > failed and all(pod.joined for pod in world.pods.values()):
                return world.now - since
        raise AssertionError(f"not training: {world.status}")

    def test_the_same_rank_fails_again_and_again_and_never_waits_for_it(self) -> None:
        world = self.world(5)
        assert max(self.fail(world) for _ in range(5)) < 3
        assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (6, 5, 0)
        # Every second time: a new pod's first restart comes at once.
        assert world.replaced == ["bert-1-2", "bert-1-3"]

    @pytest.mark.parametrize("write", range(7))
    def test_the_operator_is_killed_before_any_write_of_a_replacement(self, write: int) -> None:
        world = self.world()
        self.fail(world)
        world.fail_rank(1, "Error", 1)
        world.agents.step("bert-1")
        world.sync(world.operator)
        assert world.operator.run_pass(world, dies_after=write) == (write >= 5)
        world.restart_operator()
        for _ in range(30):
            world.round(0.1)
        assert world.replaced == ["bert-1-2"]
        assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (3, 2, 0)

    def test_all_ranks_at_once(self) -> None:
        world = self.world()
        self.fail(world)
        for worker in (0, 1):
            world.fail_rank(worker, "Error", 1)
        for _ in range(40):
            world.round(0.1)
        # Worker 0 ended for the first time.
        assert (world.replaced, world.status.attempt, world.status.restarts) == (["bert-1-2"], 3, 2)


def test_a_lost_status_is_made_up_for_by_a_higher_attempt() -> None:
    world = training(World())
    world.status = JobStatus()
    world.reattribute()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)


class TestElastic:
    def world(self) -> World:
        return training(World(3, elastic={"minWorkers": 2, "maxWorkers": 4}))

    def test_a_worker_that_cant_come_back_is_left_out_and_comes_back_later(self) -> None:
        world = self.world()
        world.endless = True
        world.without_room = {0}
        world.delete_pod("bert-0")
        for _ in range(100):
            world.round()
        assert (world.status.attempt, world.status.worker_order) == (2, [1, 2])
        assert (world.status.restarts, world.status.disruptions) == (0, 1)
        assert {pod.joined is not None for pod in world.pods.values() if pod.worker} == {True}
        world.without_room = set()
        for _ in range(150):
            world.round()
        assert (world.status.attempt, world.status.worker_order) == (3, [0, 1, 2])
        world.endless = False
        world.reattribute()
        assert (world.status.phase, world.status.restarts, world.status.disruptions) == ("Succeeded", 0, 1)

    def test_it_never_goes_below_its_minimum(self) -> None:
        world = self.world()
        world.without_room = {0, 1}
        world.delete_pod("bert-0")
        world.delete_pod("bert-1")
        for _ in range(200):
            world.round()
        assert (world.status.phase, world.status.attempt) == ("Restarting", 1)

    def test_scaling_is_a_planned_stop_and_a_new_attempt(self) -> None:
        world = self.world()
        world.endless = True
        world.edit(workers=2)
        for _ in range(10):
            world.round()
        assert (world.status.phase, world.status.worker_order, sorted(world.pods)) == (
            "Running",
            [0, 1],
            ["bert-0", "bert-1"],
        )
        world.edit(workers=4)
        for _ in range(150):
            world.round()
        assert (world.status.attempt, world.status.worker_order) == (3, [0, 1, 2, 3])
        assert (world.status.restarts, world.status.disruptions) == (0, 0)
        world.endless = False
        world.reattribute()
        assert world.status.phase == "Succeeded"

    def test_a_job_that_doesnt_get_all_its_workers_begins_with_fewer(self) -> None:
        world = World(3, elastic={"minWorkers": 2, "maxWorkers": 4})
        world.without_room = {2}
        for _ in range(90):
            world.round()
        assert world.status.attempt == 2
        world.reattribute()
        assert (world.status.phase, world.status.worker_order) == ("Succeeded", [0, 1])


@pytest.mark.parametrize("pair", range(5))
def test_two_half_started_jobs_never_block_each_other(pair: int) -> None:
    """Nodes for one and a half: each job gets three of the four that it needs."""
    room = Room(6)
    worlds = [World(4, uid=f"job-{pair}-{name}", failurePolicy={"startupSeconds": 3600}) for name in "ab"]
    for world in worlds:
        world.room = room
    for _ in range(3):
        for world in worlds:
            world.now += 0.5
            world.step_controller()
            world.operator.run_pass(world)
    for name in worlds[0].names[:3]:
        for world in worlds:
            world.step_kubelet(name)
    assert room.free == 0
    for _ in range(3000):
        for world in worlds:
            if not world.at_rest():
                world.round(2.0)
        if all(world.at_rest() for world in worlds):
            break
    assert [world.status.phase for world in worlds] == ["Succeeded", "Succeeded"]
    assert [(world.status.restarts, world.status.disruptions) for world in worlds] == [(0, 0), (0, 0)]
    assert room.free == 6


def test_a_job_that_holds_nothing_has_nothing_to_give_back() -> None:
    world = World(2)
    world.without_room = {0, 1}
    for _ in range(400):
        world.round()
    assert (world.status.phase, world.status.scheduling_backoffs, world.status.attempt) == ("Pending", 0, 1)
    world.without_room = set()
    world.reattribute()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)
