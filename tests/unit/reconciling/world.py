"""Simulates a world around `decide`: API server, StatefulSet controller, kubelets, agents, training, and operators.

Each object does one small step when it is called, so a test chooses the order of all steps. The objects follow
docs/protocol.md and Kubernetes in a simplified form. This module has the API server and Kubernetes' controllers. The
kubelet restarts containers with a back-off, and may be late in showing an annotation. The StatefulSet controller
replaces a pod only when the old one is gone. Agents and their ranks are in `world_agents`. Operators are in
`world_operator`: their view of pods may be outdated, they write with preconditions, and can be killed between writes.

`World.check` checks the properties that always hold; agents and operators check their own actions.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

from tests.unit.reconciling.builders import UID
from tests.unit.reconciling.world_agents import Agents
from tests.unit.reconciling.world_operator import START, Operator, Outdated
from tests.unit.reconciling.world_pods import Pod, Room
from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import MAX_FAILURES, TERMINAL_PHASES, TIME_CATEGORIES, JobStatus
from trainmaster_operator.reconciling.observed.snapshot import ChildView
from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, HASH_ANNOTATION
from trainmaster_operator.wire.report import ENDED, Report


class World:
    """Simulates a cluster; see the module."""

    def __init__(
        self, workers: int = 2, skews: tuple[float, ...] = (0.0, 0.0, 0.0), uid: str = UID, **spec: Any
    ) -> None:
        # Workers whose pods find no node
        self.without_room: set[int] = set()
        # Nodes shared with other worlds
        self.room: Room | None = None
        # Training ends after so many steps.
        self.steps = 3
        # The ranks can continue in a continued attempt.
        self.able = False
        # Training never ends.
        self.endless = False
        # The value of the annotation by which the user asks for a restart.
        self.restart_request: str | None = None
        self.skews = skews
        self.now = START
        self.uid = uid
        raw = {"image": "example.com/train:1", "command": ["python", "train.py"], "workers": workers, **spec}
        self.raw = raw
        self.spec = parse_spec(raw, "bert")
        self.generation = 1
        self.version = 1
        self.status = JobStatus()
        self.child: ChildView | None = None
        self.service: ChildView | None = None
        self.template: Assignment | None = None
        self.replicas = 0
        self.pods: dict[str, Pod] = {}
        # Pods that were deleted by force while their processes still ran
        self.zombies: list[Pod] = []
        self.watched = True
        self.deleted = False
        self.serial = 0
        self.operator = Operator()
        self.writes: list[str] = []
        # Pods that operators have deleted
        self.replaced: list[str] = []
        # The kubelets' messages about containers that probes have ended, by pod and time
        self.kills: dict[tuple[str, float], str | None] = {}
        self.agents = Agents(self)
        self.sync(self.operator)

    # The API server

    @property
    def workers(self) -> int:
        return self.spec.workers or 0

    @property
    def leader(self) -> int:
        """Returns the first worker of the template's assignment whose agent answers."""
        able = {pod.worker for pod in self.pods.values() if pod.running and not pod.frozen}
        return next((worker for worker in (self.template.workers if self.template else ()) if worker in able), 0)

    @property
    def names(self) -> list[str]:
        """Returns the names of all pods that exist or may be made."""
        known = [pod.worker for pod in self.pods.values()]
        return [f"bert-{index}" for index in range(max([self.workers + (self.spec.spares or 0) - 1, *known]) + 1)]

    def edit(self, **spec: Any) -> None:
        """Changes the spec, as the user would."""
        self.raw = {**self.raw, **spec}
        self.spec = parse_spec(self.raw, "bert")
        self.generation += 1
        self.version += 1

    @property
    def code(self) -> str | None:
        """Returns the digest of the code in the user's ConfigMap, which is written before the job."""
        return None if self.spec.code is None else self.spec.code.digest

    def push_code(self) -> None:
        """Uploads new code, as the user would."""
        assert self.spec.code is not None
        number = int(self.spec.code.digest, 16) + 1
        self.edit(code={"digest": f"{number:064x}", "configMap": "bert-code"})

    def request_restart(self) -> None:
        """Asks for a restart, as the user would."""
        self.restart_request = str(int(self.restart_request or "0") + 1)
        self.version += 1

    def sync(self, operator: Operator) -> None:
        """Gives an operator a complete list."""
        self.show_job(operator)
        operator.child, operator.service = self.child, self.service
        operator.pods = {name: pod.view() for name, pod in self.pods.items()}
        for pod in self.pods.values():
            self._take_ends(operator, pod)

    def show_job(self, operator: Operator) -> None:
        operator.version, operator.status, operator.spec = self.version, self.status, self.spec
        operator.restart_request = self.restart_request

    def show(self, operator: Operator, name: str) -> None:
        """Shows one pod's state, or its deletion, in an operator's watch."""
        pod = self.pods.get(name)
        if pod is None:
            operator.pods.pop(name, None)
        else:
            operator.pods[name] = pod.view()
            self._take_ends(operator, pod)

    def _take_ends(self, operator: Operator, pod: Pod) -> None:
        for end in (pod.last_end, pod.end):
            if end is not None and end.report is not None:
                operator.take(end.report)

    # Writes

    def write_status(self, status: JobStatus) -> None:
        before = self.status
        assert before.phase not in TERMINAL_PHASES or status.phase == before.phase, "a terminal phase changed"
        assert before.phase not in TERMINAL_PHASES or status.completion_time == before.completion_time
        assert before.attempt == 0 or status.attempt in (before.attempt, before.attempt + 1), (
            "an attempt was skipped or taken back"
        )
        assert status.restarts <= self.spec.failure_policy.max_restarts, "more restarts than the budget has"
        check_failures(status)
        assert status.phase != "Suspended" or not status.replicas, "a suspended job has pods"
        if status.attempt == before.attempt and before.attempt > 0:
            assert status.code_digest == before.code_digest, "an attempt has two codes"
        if status.stopping and not before.stopping:
            assert (status.restarts, status.disruptions) == (before.restarts, before.disruptions), "a request counted"
        if before.scheduling_backoffs and status.scheduling_backoffs and status.failures[:1] == before.failures[:1]:
            assert status.startup_start_time == before.startup_start_time, "a scheduling backoff renewed startupSeconds"
        check_time(before, status)
        if status.continues is not None and status.attempt > before.attempt:
            self._check_continued(before, status)
        self.status = JobStatus.model_validate(status.model_dump(by_alias=True))
        self.version += 1

    def _check_continued(self, before: JobStatus, status: JobStatus) -> None:
        """Checks that each member of a continued attempt had its place in the previous one, or is ready to join."""
        assert self.able, "ranks that can't continue were to"
        assert status.continues == (before.attempt if before.continues is None else before.continues)
        assert before.phase in ("Pending", "Starting", "Running") and status.phase == "Running"
        assert len(status.pod_uids) == len(before.pod_uids), "the world size changed"
        members, were = present_uids(status), present_uids(before)
        assert members, "nobody is left"
        for rank, uid in members.items():
            assert were.get(rank) == uid or (uid, before.attempt) in self.agents.ready, f"{uid} wasn't in the group"

    def apply(self, operator: Operator, manifest: Any) -> None:
        unseen = (operator.child is None and self.child is not None) or (
            operator.service is None and self.service is not None
        )
        if unseen:
            # The executor reads a child that it believes to be absent. If the child exists, the executor decides again.
            operator.child, operator.service = self.child, self.service
            raise Outdated
        rendered_hash = manifest["metadata"]["annotations"][HASH_ANNOTATION]
        if manifest["kind"] != "StatefulSet":
            self.service = ChildView(manifest["kind"], "bert", "service-uid", rendered_hash, self.uid)
            operator.service = self.service
            return
        self.template = Assignment.parse(
            parse_text(manifest["spec"]["template"]["metadata"]["annotations"][ASSIGNMENT_ANNOTATION])
        )
        self.replicas = manifest["spec"]["replicas"]
        self.child = ChildView(
            "StatefulSet", "bert", "set-uid", rendered_hash, self.uid, replicas=self.replicas, assignment=self.template
        )
        operator.child = self.child

    def push(self, assignment: Assignment) -> None:
        if self.watched:
            for pod in self.pods.values():
                if pod.running and not pod.frozen:
                    self.agents.see(pod, assignment)

    def annotate(self, operator: Operator, name: str, uid: str, assignment: Assignment) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            self.show(operator, name)
            return
        pod.annotation = assignment
        self.show(operator, name)

    def delete_as_seen(self, operator: Operator, name: str, uid: str) -> None:
        """Deletes a pod as an operator does: only if its uid and version are the ones that the operator has seen."""
        pod, seen = self.pods.get(name), operator.pods.get(name)
        if pod is None or pod.uid != uid or pod.view() != seen:
            self.show(operator, name)
            raise Outdated
        # A replaced pod isn't in the attempt: its node is avoided, or its agent was silent.
        assert not pod.running or self.status.avoided_nodes or pod.uid not in present_uids(self.status).values(), (
            "a pod was deleted whose container runs"
        )
        self.replaced.append(uid)
        self.delete_pod(name)

    def touch(self, operator: Operator, name: str, uid: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.uid == uid:
            pod.touched_at = self.now + operator.clock
            pod.late = False
        self.show(operator, name)

    # Kubernetes' controllers and the kubelet

    def step_controller(self) -> None:
        """Lets the StatefulSet controller create missing pods, and remove those that are too many or have failed."""
        for index, name in enumerate(self.names):
            pod = self.pods.get(name)
            if index >= self.replicas:
                if pod is not None:
                    pod.deleting = True
            elif pod is None and self.template is not None:
                self.serial += 1
                self.pods[name] = Pod(
                    name, f"{name}-{self.serial}", index, self.template, self.now, self.skews[index % len(self.skews)]
                )
            elif pod is not None and pod.evicted:
                pod.deleting = True

    def step_kubelet(self, name: str) -> None:
        """Lets the pod's node perform its next step."""
        pod = self.pods.get(name)
        if pod is None:
            return
        if pod.deleting:
            pod.stop_process()
            if pod.node is not None and self.room is not None:
                self.room.free += 1
            del self.pods[name]
        elif pod.evicted:
            pod.stop_process()
        elif pod.node is None and (pod.worker in self.without_room or (self.room is not None and not self.room.take())):
            pod.no_room = True
        elif pod.node is None:
            pod.no_room = False
            pod.node = f"node-{pod.worker}"
        elif not pod.running and self.now >= pod.start_again_at:
            if pod.end is not None:
                pod.last_end, pod.end = pod.end, None
                pod.restarts += 1
            pod.running = True
            pod.started_at = math.floor(self.now + pod.skew)
            pod.file, pod.code = pod.annotation, self.code
            pod.assignment = None
        elif not pod.late:
            pod.file, pod.code = pod.annotation, self.code

    def step_stream(self, operator: Operator) -> None:
        """Lets the stream deliver the agents' lines."""
        if not self.watched:
            return
        for pod in self.pods.values():
            if pod.running and not pod.frozen:
                for report in list(pod.reports.values()):
                    operator.take(report)
                    if report.state in ENDED:
                        pod.acked = max(pod.acked, report.attempt)

    # Faults

    def fail_rank(self, worker: int, reason: str, code: int, error: str = "") -> None:
        pod = self.pods.get(f"bert-{worker}")
        if pod is not None and pod.ranks is not None:
            pod.fault = Report(pod.ranks, worker, pod.uid, "Failed", reason=reason, exit_code=code, error=error)

    def kill_container(self, worker: int, reason: str) -> None:
        """Kills the whole container without a report."""
        pod = self.pods.get(f"bert-{worker}")
        if pod is not None and pod.running:
            pod.end_container(self.now, 137, reason, None)

    def probe(self, pod: Pod) -> None:
        """Lets the kubelet end the container of a stalled agent."""
        if pod.running and pod.frozen:
            pod.end_container(self.now, 137, "Error", None)
            assert pod.end is not None and pod.end.finished_at is not None
            self.kills[pod.uid, pod.end.finished_at] = "the kubelet: Container worker failed liveness probe"

    def delete_pod(self, name: str, *, force: bool = False) -> None:
        pod = self.pods.get(name)
        if pod is None:
            return
        if force:
            zombie = copy.copy(pod)
            del self.pods[name]
            self.zombies.append(zombie)
        else:
            pod.deleting = True

    def evict_pod(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and not pod.deleting:
            pod.evicted = True

    def end_zombies(self) -> None:
        """Lets nodes return and end containers that they shouldn't run any more."""
        self.zombies.clear()

    def restart_operator(self, clock: float = 0.0) -> None:
        """Starts a new operator, which lists all objects again and has no reports from agents yet."""
        self.operator = Operator(clock=clock, since=self.now + clock)
        self.sync(self.operator)

    # Running

    def round(self, seconds: float = 0.5) -> None:
        """Lets every part make one step, in order, with a fresh view."""
        self.now += seconds
        self.step_controller()
        for name in self.names:
            self.step_kubelet(name)
            self.agents.step(name)
        self.step_stream(self.operator)
        self.sync(self.operator)
        self.operator.run_pass(self)
        self.check()

    def at_rest(self) -> bool:
        """Returns whether the job has reached its intended state."""
        suspended = self.spec.run_policy.suspend and self.status.phase == "Suspended"
        return (self.status.phase in TERMINAL_PHASES or suspended) and not self.pods and self.replicas == 0

    def settle(self, rounds: int = 400) -> None:
        """Runs rounds without new faults until the world is at rest."""
        self.end_zombies()
        for _ in range(rounds):
            if self.at_rest():
                break
            for pod in self.pods.values():
                self.probe(pod)
            self.round()
        assert self.at_rest(), f"{self.status.phase} after {rounds} rounds: {self.status}"
        self.round()
        before, writes = self.status, len(self.writes)
        for _ in range(3):
            self.round()
        assert self.status == before, "the status doesn't come to rest"
        assert len(self.writes) == writes, f"writes go on: {self.writes[writes:]}"

    def check(self) -> None:
        """Checks the properties that always hold."""
        attempts = [pod.annotation.attempt for pod in self.pods.values()]
        assert max(attempts, default=0) <= max(self.status.attempt, 1), "an assignment went out before the status"
        if self.child is not None and self.child.assignment is not None:
            assert self.child.assignment.attempt <= max(self.status.attempt, 1)
        training = {
            pod.ranks
            for pod in self.pods.values()
            if pod.joined and all(_trains(self, uid, pod.joined) for uid in pod.joined)
        }
        assert len(training) <= 1, f"attempts {training} train at the same time"


def check_time(before: JobStatus, status: JobStatus) -> None:
    """Checks that the categories add up to the time since the start, and only grow unless a clock is corrected."""
    spent = status.time_spent
    if status.start_time is None:
        assert spent is None
        return
    assert spent is not None and spent.until is not None
    until, start = to_seconds(spent.until), to_seconds(status.start_time)
    assert until is not None and start is not None
    amounts = {name: getattr(spent, name) or 0.0 for name in TIME_CATEGORIES}
    assert min(amounts.values()) >= 0
    assert round(sum(amounts.values()), 3) == round(max(until - start, 0.0), 3), f"{amounts} from {start} to {until}"
    # The time before the first step moves between these two.
    amounts["load"] += amounts.pop("unreported")
    if before.time_spent is not None and before.time_spent.until is not None and before.time_spent.until <= spent.until:
        earlier = {name: getattr(before.time_spent, name) or 0.0 for name in TIME_CATEGORIES}
        earlier["load"] = round(earlier["load"] + earlier.pop("unreported"), 3)
        shrunk = {name for name in amounts if round(amounts[name], 3) < earlier[name]}
        assert not shrunk, f"{shrunk} became less"


def check_failures(status: JobStatus) -> None:
    """Checks that the failures are a short list, newest first, and that every failure is counted once."""
    failures = status.failures
    assert len(failures) <= MAX_FAILURES
    attempts = [(failure.attempt, failure.first_attempt or failure.attempt) for failure in failures]
    assert all(first <= newest for newest, first in attempts)
    # A worker that failed before it joined may end its attempt twice.
    assert all(newer[1] >= older[0] for newer, older in itertools.pairwise(attempts)), f"out of order: {attempts}"
    if len(failures) < MAX_FAILURES:
        count = sum(failure.count or 1 for failure in failures)
        uncounted = bool(failures and failures[0].provisional) or status.phase == "Failed"
        counts = status.restarts + status.disruptions
        assert counts <= count <= counts + uncounted, f"{count} failures, but {counts} restarts"
    assert not any(failure.provisional for failure in failures[1:])


def _trains(world: World, uid: str, group: tuple[str, ...]) -> bool:
    return any(pod.uid == uid and pod.joined == group for pod in world.pods.values())


def present_uids(status: JobStatus) -> dict[int, str | None]:
    """Returns the pods in the attempt's group, by rank."""
    return {rank: uid for rank, uid in enumerate(status.pod_uids) if rank not in status.absent_ranks}
