"""Scripted histories inject a fault into a simulated world, and check its cost and how the job continues."""

from __future__ import annotations

import pytest

from tests.unit.reconciling.world import World
from tests.unit.reconciling.world_pods import Room
from trainmaster_operator.api.v1alpha1 import JobStatus


def training(world: World) -> World:
    """Runs rounds until all ranks have joined."""
    for _ in range(50):
        if world.pods and all(pod.joined for pod in world.pods.values()):
            return world
        world.round(0.1)
    raise AssertionError(f"not training: {world.status}")


def test_a_job_without_faults_ends_in_its_first_attempt_with_few_writes() -> None:
    world = World()
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)
    assert (world.status.restarts, world.status.disruptions) == (0, 0)
    assert world.writes.count("apply Service") == 1
    assert world.writes.count("apply StatefulSet") == 2
    assert "annotate" not in world.writes
    assert world.writes[:3] == ["status", "apply Service", "apply StatefulSet"]


@pytest.mark.parametrize("watched", [True, False])
def test_workers_that_stand_still_together_cost_one_restart(watched: bool) -> None:
    """The kubelets' probes end their agents one after the other, and the events expire."""
    world = World(workers=3)
    world.watched = watched
    pods = list(training(world).pods.values())
    for pod in pods:
        pod.frozen = True
    for pod in pods:
        world.probe(pod)
        for _ in range(8):
            world.round()
    world.kills.clear()
    world.settle()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Succeeded", 2, 1)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("reason", ["Error", "Signal", "OOMKilled"])
def test_a_failed_rank_costs_one_restart_by_either_way_of_reporting(watched: bool, reason: str) -> None:
    world = World()
    world.watched = watched
    before = {name: pod.uid for name, pod in training(world).pods.items()}
    world.fail_rank(1, reason, 137)
    for _ in range(20):
        world.round()
    assert {name: pod.uid for name, pod in world.pods.items()} in (before, {})
    world.settle()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Succeeded", 2, 1)
    assert (world.status.failures[0].worker, world.status.failures[0].reason) == (1, reason)


@pytest.mark.parametrize("watched", [True, False])
def test_a_deleted_pod_costs_no_restart_by_either_way_of_reporting(watched: bool) -> None:
    world = World()
    world.watched = watched
    training(world).delete_pod("bert-0")
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)
    assert (world.status.restarts, world.status.disruptions) == (0, 1)


@pytest.mark.parametrize("watched", [True, False])
def test_a_killed_container_is_found_by_either_way_of_reporting(watched: bool) -> None:
    world = World()
    world.watched = watched
    training(world).kill_container(1, "OOMKilled")
    world.settle()
    assert (world.status.phase, world.status.restarts) == ("Succeeded", 1)
    assert world.status.failures[0].reason == "OOMKilled"


class TestBackOffWithoutStreams:
    """Agents report every failure by exiting. The kubelet delays a pod's second restart by 10 s, the third by 20 s."""

    def world(self, failures: int = 3) -> World:
        world = World(failurePolicy={"maxRestarts": failures})
        world.watched = False
        world.endless = True
        return training(world)

    def fail(self, world: World) -> float:
        """Returns the seconds from a rank's end to the next attempt's training."""
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
        # The pod is replaced every second time, because a new pod's first restart comes at once.
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
    world.settle()
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
        world.settle()
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
        world.settle()
        assert world.status.phase == "Succeeded"

    def test_a_job_that_doesnt_get_all_its_workers_begins_with_fewer(self) -> None:
        world = World(3, elastic={"minWorkers": 2, "maxWorkers": 4})
        world.without_room = {2}
        for _ in range(90):
            world.round()
        assert world.status.attempt == 2
        world.settle()
        assert (world.status.phase, world.status.worker_order) == ("Succeeded", [0, 1])


@pytest.mark.parametrize("pair", range(5))
def test_two_half_started_jobs_never_block_each_other(pair: int) -> None:
    """There are nodes for one and a half jobs: each job gets three of the four nodes that it needs."""
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
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 1)
