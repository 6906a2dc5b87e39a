"""In random histories, events come in any order, the invariants of architecture.md hold, and the job ends."""

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

WORKERS = st.integers(0, 3)
FAULTS = st.sampled_from(
    [("Error", 1), ("OOMKilled", 137), ("Signal", 137), ("Hung", 68), ("Error", 1, "KeyError: 'x'")]
)


class History(RuleBasedStateMachine):
    """Each rule is one step of one part of the world, or a fault."""

    world: World
    rival: Operator | None

    @initialize(
        workers=st.integers(2, 3),
        restarts=st.integers(0, 3),
        back_off=st.sampled_from([0, 3]),
        skews=st.tuples(*[st.sampled_from([0.0, -4.0, 4.0, 90.0])] * 3),
        watched=st.booleans(),
        policy=st.sampled_from(["AllWorkers", "RankZero"]),
        begun=st.booleans(),
        elastic=st.booleans(),
        spares=st.sampled_from([None, 1, 2]),
        code=st.booleans(),
    )
    def begin(
        self,
        workers: int,
        restarts: int,
        back_off: int,
        skews: tuple[float, float, float],
        watched: bool,
        policy: str,
        begun: bool,
        elastic: bool,
        spares: int | None,
        code: bool,
    ) -> None:
        spec: dict[str, Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 4}} if elastic else {}
        if spares is not None:
            spec["spares"] = spares
        if code:
            spec["code"] = {"digest": "0" * 64, "configMap": "bert-code"}
        self.world = World(
            workers,
            skews,
            **spec,
            failurePolicy={"maxRestarts": restarts, "backoff": {"initialSeconds": back_off, "maxSeconds": 10}},
            successPolicy=policy,
        )
        self.world.watched = watched
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
    def rank_fails(self, worker: int, fault: tuple[Any, ...]) -> None:
        self.world.fail_rank(worker, *fault)

    @rule(worker=WORKERS, fault=FAULTS, dies_after=st.one_of(st.none(), st.integers(0, 6)))
    def rank_fails_into_back_off(self, worker: int, fault: tuple[Any, ...], dies_after: int | None) -> None:
        """A rank fails again and reports by exiting, because random steps rarely get this far within the back-off."""
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is None or pod.ranks is None:
            return
        self.world.watched, pod.restarts = False, max(pod.restarts, 1)
        self.world.fail_rank(worker, *fault)
        self.world.agents.step(pod.name)
        self.world.sync(self.world.operator)
        self._pass(dies_after)

    @rule(worker=WORKERS, reason=st.sampled_from(["Error", "OOMKilled"]))
    def container_dies(self, worker: int, reason: str) -> None:
        self.world.kill_container(worker, reason)

    @rule(worker=WORKERS, dies_after=st.one_of(st.none(), st.integers(0, 6)))
    def agent_is_killed_into_back_off(self, worker: int, dies_after: int | None) -> None:
        """An agent is killed again without a report, for the same reason."""
        pod = self.world.pods.get(f"bert-{worker}")
        if pod is None or pod.ranks is None:
            return
        pod.restarts = max(pod.restarts, 1)
        self.world.kill_container(worker, "Error")
        self.world.sync(self.world.operator)
        self._pass(dies_after)

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
        self.world.watched = not self.world.watched

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

    @rule(dies_after=st.one_of(st.none(), st.integers(0, 6)), is_seen=st.booleans())
    def user_pushes_code(self, dies_after: int | None, is_seen: bool) -> None:
        if self.world.spec.code is not None:
            self.world.push_code()
            self._see_request(dies_after, is_seen)

    @rule(dies_after=st.one_of(st.none(), st.integers(0, 6)), is_seen=st.booleans())
    def user_requests_a_restart(self, dies_after: int | None, is_seen: bool) -> None:
        self.world.request_restart()
        self._see_request(dies_after, is_seen)

    def _see_request(self, dies_after: int | None, is_seen: bool) -> None:
        if is_seen:
            self.world.show_job(self.world.operator)
            self._pass(dies_after)

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
            self.world.settle()


class ContinuedHistory(History):
    """All ranks train at first, and can continue."""

    @initialize(
        workers=st.integers(2, 4),
        restarts=st.integers(0, 3),
        skews=st.tuples(*[st.sampled_from([0.0, -4.0, 4.0, 90.0])] * 3),
        policy=st.sampled_from(["AllWorkers", "RankZero"]),
        elastic=st.booleans(),
        spares=st.sampled_from([None, 1, 2]),
    )
    def begin(  # type: ignore[override]
        self,
        workers: int,
        restarts: int,
        skews: tuple[float, float, float],
        policy: str,
        elastic: bool,
        spares: int | None,
    ) -> None:
        spec: dict[str, Any] = {"elastic": {"minWorkers": 1, "maxWorkers": 4}} if elastic else {}
        spec |= {"failurePolicy": {"maxRestarts": restarts, "backoff": {"initialSeconds": 0}}, "successPolicy": policy}
        self.world = World(workers, skews, **spec, **({} if spares is None else {"spares": spares}))
        self.world.able, self.world.steps = True, 20
        self.rival = None
        for _ in range(8):
            self.world.round(0.1)

    @rule(
        lost=st.lists(WORKERS, min_size=1, max_size=2),
        how=st.sampled_from(["rank", "pod", "force", "container"]),
        dies_after=st.one_of(st.none(), st.integers(0, 6)),
    )
    def workers_are_lost(self, lost: list[int], how: str, dies_after: int | None) -> None:
        """The operator learns of each loss at once, so the second one can fall into the attempt that follows."""
        for worker in lost:
            match how:
                case "rank":
                    self.world.fail_rank(worker, "Signal", 137)
                    self.world.agents.step(f"bert-{worker}")
                case "container":
                    self.world.kill_container(worker, "Error")
                case _:
                    self.world.delete_pod(f"bert-{worker}", force=how == "force")
            self.world.step_stream(self.world.operator)
            self.world.sync(self.world.operator)
            self._pass(dies_after)


THOROUGH = os.environ.get("TRAINMASTER_SLOW") == "1"
SETTINGS = settings(
    max_examples=3000 if THOROUGH else 3 * settings.default.max_examples,
    stateful_step_count=60 if THOROUGH else 40,
    derandomize=not THOROUGH,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# This takes a minute on an idle processor, but the stage runs at a low priority beside others.
@pytest.mark.timeout(3600 if THOROUGH else 600)
class TestHistories(History.TestCase):  # type: ignore[misc,valid-type]
    """Runs the same histories each time; TRAINMASTER_SLOW=1 searches for new ones."""

    settings = SETTINGS


# This takes a minute on an idle processor, but the stage runs at a low priority beside others.
@pytest.mark.timeout(3600 if THOROUGH else 600)
class TestContinuedHistories(ContinuedHistory.TestCase):  # type: ignore[misc,valid-type]
    """Runs the same, with faults that lead to continued attempts."""

    settings = SETTINGS
