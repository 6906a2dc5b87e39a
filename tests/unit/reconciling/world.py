"""A simulated world around `decide`: API server, StatefulSet controller, kubelets, agents, training, and operators.

Each part does one small step when told, so a test chooses the order of everything. What they do is what
docs/protocol.md and Kubernetes say, made small: agents take the highest attempt that they see, at the same attempt Hold
wins, a mark outlives the container, a report that nobody follows is made by exiting; the kubelet starts containers
again with a back-off and may be late in showing an annotation; the StatefulSet controller replaces pods only when the
old one is gone. Operators see pods through a view that may be behind, write with preconditions, and can be killed
between writes.

`World.check` holds what must be true at every moment; agents and operators check what they do themselves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.unit.reconciling.builders import SETTINGS, UID
from trainmaster.api.parsing import parse_spec
from trainmaster.api.protocol import ASSIGNMENT_ANNOTATION, HASH_ANNOTATION, Assignment, RankProgress, Report
from trainmaster.api.v1alpha1 import TERMINAL_PHASES, JobSpec, JobStatus
from trainmaster.reconciling import decide
from trainmaster.reconciling.decision import Apply, Assign, DeleteJob, DeletePod, Touch
from trainmaster.reconciling.situation import ENDED_STATES
from trainmaster.reconciling.snapshot import (
    ChildView,
    ContainerEnd,
    ContainerView,
    Job,
    MemberView,
    Observed,
    PodView,
    StreamView,
)
from trainmaster.reconciling.time_spent import CATEGORIES
from trainmaster.reconciling.times import to_seconds

STEPS = 3
START = 1_795_233_600.0
ACKED_SILENCE = 30.0
FIRST_BACK_OFF, LONGEST_BACK_OFF = 1.0, 16.0


class Killed(Exception):
    """The operator's process is gone in the middle of a pass."""


class Outdated(Exception):
    """A precondition failed: 409 Conflict."""


@dataclass
class Pod:
    """A pod on the server, its container on a node, and the agent in it."""

    name: str
    uid: str
    worker: int
    annotation: Assignment
    created_at: float
    # Of the node's clock to the world's.
    skew: float
    deleting: bool = False
    evicted: bool = False
    touched_at: float | None = None
    node: str | None = None
    no_room: bool = False
    # The container.
    running: bool = False
    restarts: int = 0
    started_at: float | None = None
    end: ContainerEnd | None = None
    last_end: ContainerEnd | None = None
    start_again_at: float = 0.0
    # The downward-API file; `late`: it doesn't follow the annotation until the pod is touched.
    file: Assignment | None = None
    late: bool = False
    # The agent. `mark` and `told_by_exit` are on disk, the rest dies with the process.
    mark: Report | None = None
    told_by_exit: bool = False
    assignment: Assignment | None = None
    reports: dict[int, Report] = field(default_factory=dict)
    acked: int = 0
    # The ranks: the attempt they run, who they have joined with (uids), steps done, and how they shall fail.
    ranks: int | None = None
    joined: tuple[str, ...] | None = None
    steps: int = 0
    fault: Report | None = None

    @property
    def alive(self) -> bool:
        return not self.deleting and not self.evicted

    def view(self) -> PodView:
        state: Literal["running", "terminated", "waiting"] = (
            "running" if self.running else "terminated" if self.end else "waiting"
        )
        container = ContainerView(
            name="worker",
            state=state,
            ready=self.running,
            restarts=self.restarts,
            reason="" if state != "waiting" else "CrashLoopBackOff" if self.last_end else "ContainerCreating",
            started_at=self.started_at if self.running else None,
            end=self.end,
            last_end=self.last_end,
        )
        return PodView(
            name=self.name,
            uid=self.uid,
            worker=self.worker,
            set_name="bert",
            phase="Failed" if self.evicted else "Running" if self.node else "Pending",
            created_at=self.created_at,
            node=self.node,
            unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu." if self.no_room else None,
            deleting=self.deleting,
            reason="Evicted" if self.evicted else "",
            message="The node was low on resource: memory." if self.evicted else "",
            assignment=self.annotation,
            touched_at=self.touched_at,
            worker_container=container if self.node else None,
        )


@dataclass
class Room:
    """Nodes for one pod each, first come, first served."""

    free: int

    def take(self) -> bool:
        if self.free <= 0:
            return False
        self.free -= 1
        return True


@dataclass
class Operator:
    """One operator's process: what it has seen, and its clock."""

    clock: float = 0.0
    version: int = 0
    status: JobStatus = field(default_factory=JobStatus)
    spec: JobSpec | None = None
    pods: dict[str, PodView] = field(default_factory=dict)
    child: ChildView | None = None
    service: ChildView | None = None
    reports: dict[tuple[int, int], Report] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        """As the store does: an end isn't taken back by what was said before it."""
        key = (report.attempt, report.worker)
        known = self.reports.get(key)
        if known is None or known.uid != report.uid or known.state not in ENDED_STATES:
            self.reports[key] = report


class World:
    """See the module."""

    def __init__(
        self, workers: int = 2, skews: tuple[float, ...] = (0.0, 0.0, 0.0), uid: str = UID, **spec: Any
    ) -> None:
        # Workers whose pods find no node.
        self.without_room: set[int] = set()
        # Nodes that are shared with other worlds.
        self.room: Room | None = None
        # Training goes on and on.
        self.endless = False
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
        # Pods that were deleted by force while their processes still ran.
        self.zombies: list[Pod] = []
        self.followed = True
        self.deleted = False
        self.serial = 0
        self.operator = Operator()
        self.writes: list[str] = []
        # Facts to check against: (uid, attempt) of each start, and the groups that each attempt was joined by.
        self.started: set[tuple[str, int]] = set()
        self.groups: dict[int, set[tuple[str, ...]]] = {}
        self.sync(self.operator)

    # The API server's side.

    @property
    def workers(self) -> int:
        return self.spec.workers or 0

    @property
    def names(self) -> list[str]:
        """The pods that there are or could be."""
        known = [pod.worker for pod in self.pods.values()]
        return [f"bert-{index}" for index in range(max([self.workers - 1, *known]) + 1)]

    def edit(self, **spec: Any) -> None:
        """The user changes the spec."""
        self.raw = {**self.raw, **spec}
        self.spec = parse_spec(self.raw, "bert")
        self.generation += 1
        self.version += 1

    def sync(self, operator: Operator) -> None:
        """A full list."""
        self.show_job(operator)
        operator.child, operator.service = self.child, self.service
        operator.pods = {name: pod.view() for name, pod in self.pods.items()}
        for pod in self.pods.values():
            self._take_ends(operator, pod)

    def show_job(self, operator: Operator) -> None:
        operator.version, operator.status, operator.spec = self.version, self.status, self.spec

    def show(self, operator: Operator, name: str) -> None:
        """The watch shows one pod as it is, or that it is gone."""
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

    # One operator's pass.

    def run_pass(self, operator: Operator, dies_after: int | None = None) -> bool:
        """Decide and carry out, killed before write number `dies_after`; True if the operator survived."""
        left = [math.inf if dies_after is None else dies_after]

        def writes(what: str) -> None:
            if left[0] <= 0:
                raise Killed
            left[0] -= 1
            self.writes.append(what)

        try:
            self._pass(operator, writes)
        except Killed:
            return False
        except Outdated:
            self.show_job(operator)
        return True

    def _pass(self, operator: Operator, writes: Callable[[str], None]) -> None:
        job = Job("ml", "bert", self.uid, self.generation, START, operator.spec, operator.status)
        decision = decide(job, self.observed(operator), self.now + operator.clock, SETTINGS)
        if decision.status != operator.status:
            writes("status")
            if operator.version != self.version:
                raise Outdated
            self._write_status(decision.status)
            self.show_job(operator)
        for action in decision.actions:
            match action:
                case Apply(manifest=manifest):
                    writes(f"apply {manifest['kind']}")
                    self._apply(operator, manifest)
                case Assign(assignment=assignment, pods=pods):
                    writes("push")
                    self._push(assignment)
                    for told in pods:
                        writes("annotate")
                        self._annotate(operator, told.name, told.uid, assignment)
                case Touch(pods=pods):
                    for told in pods:
                        writes("touch")
                        self._touch(operator, told.name, told.uid)
                case DeletePod(pod=pod):
                    writes("delete pod")
                    self.delete_pod(pod.name)
                case DeleteJob():
                    self.deleted = True

    def observed(self, operator: Operator) -> Observed:
        connected = self.followed and any(pod.running for pod in self.pods.values())
        members = tuple(
            MemberView(pod.worker, pod.uid, pod.assignment.attempt if pod.assignment else 0, connected=True)
            for pod in self.pods.values()
            if pod.running and connected
        )
        progress = {
            pod.worker: {pod.worker: RankProgress(step=pod.steps, total_steps=STEPS)}
            for pod in self.pods.values()
            if connected and pod.ranks == operator.status.attempt and pod.joined
        }
        return Observed(
            children=tuple(child for child in (operator.service, operator.child) if child is not None),
            pods=tuple(operator.pods.values()),
            reports=tuple(operator.reports.values()),
            progress=progress,
            progress_attempt=operator.status.attempt if progress else 0,
            progress_at=self.now if progress else None,
            stream=StreamView(connected=connected, lead=0, since=START, members=members),
        )

    def _write_status(self, status: JobStatus) -> None:
        before = self.status
        assert before.phase not in TERMINAL_PHASES or status.phase == before.phase, "a terminal phase changed"
        assert before.phase not in TERMINAL_PHASES or status.completion_time == before.completion_time
        assert before.attempt == 0 or status.attempt in (before.attempt, before.attempt + 1), (
            "an attempt was skipped or taken back"
        )
        assert status.restarts <= self.spec.failure_policy.max_restarts, "more restarts than the budget has"
        assert len(status.failures) <= 10
        check_time(before, status)
        self.status = JobStatus.model_validate(status.model_dump(by_alias=True))
        self.version += 1

    def _apply(self, operator: Operator, manifest: Any) -> None:
        unseen = (operator.child is None and self.child is not None) or (
            operator.service is None and self.service is not None
        )
        if unseen:
            # The executor reads a child that it believes to be absent, and decides again when it is there.
            operator.child, operator.service = self.child, self.service
            raise Outdated
        rendered_hash = manifest["metadata"]["annotations"][HASH_ANNOTATION]
        if manifest["kind"] != "StatefulSet":
            self.service = ChildView(manifest["kind"], "bert", "service-uid", rendered_hash, self.uid)
            operator.service = self.service
            return
        self.template = Assignment.parse(manifest["spec"]["template"]["metadata"]["annotations"][ASSIGNMENT_ANNOTATION])
        self.replicas = manifest["spec"]["replicas"]
        self.child = ChildView(
            "StatefulSet", "bert", "set-uid", rendered_hash, self.uid, replicas=self.replicas, assignment=self.template
        )
        operator.child = self.child

    def _push(self, assignment: Assignment) -> None:
        if self.followed:
            for pod in self.pods.values():
                if pod.running:
                    self._see(pod, assignment)

    def _annotate(self, operator: Operator, name: str, uid: str, assignment: Assignment) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            self.show(operator, name)
            return
        pod.annotation = assignment
        self.show(operator, name)

    def _touch(self, operator: Operator, name: str, uid: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.uid == uid:
            pod.touched_at = self.now + operator.clock
            pod.late = False
        self.show(operator, name)

    # Kubernetes' controllers and the kubelet.

    def step_controller(self) -> None:
        """The StatefulSet controller: make what is missing, remove what is too many or has failed."""
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
        """The pod's node does its next thing."""
        pod = self.pods.get(name)
        if pod is None:
            return
        if pod.deleting:
            self._stop_process(pod)
            if pod.node is not None and self.room is not None:
                self.room.free += 1
            del self.pods[name]
        elif pod.evicted:
            self._stop_process(pod)
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
            pod.file = pod.annotation
            pod.assignment = None
        elif not pod.late:
            pod.file = pod.annotation

    def end_container(self, pod: Pod, code: int, reason: str, report: Report | None) -> None:
        """The agent's process ends; the ranks end with it."""
        self._stop_process(pod)
        at = math.floor(self.now + pod.skew)
        pod.end = ContainerEnd(code, reason, "" if report is None else "{}", pod.started_at, at, report)
        pod.started_at = None
        wait = 0.0 if pod.restarts == 0 else min(FIRST_BACK_OFF * 2.0**pod.restarts, LONGEST_BACK_OFF)
        pod.start_again_at = self.now + wait

    def _stop_process(self, pod: Pod) -> None:
        pod.running = False
        pod.ranks = pod.joined = pod.fault = pod.assignment = None
        pod.reports = {}

    # Agents.

    def step_agent(self, name: str) -> None:
        """The agent looks at its file, its ranks and its links."""
        pod = self.pods.get(name)
        if pod is None or not pod.running:
            return
        if pod.file is not None:
            self._see(pod, pod.file)
        if pod.running:
            self._train(pod)
        if pod.running:
            self._report_by_exit(pod)

    def _see(self, pod: Pod, assignment: Assignment) -> None:
        known = pod.assignment
        newer = known is None or assignment.attempt > known.attempt
        held = known is not None and assignment.attempt == known.attempt and assignment.state == "Hold"
        if not newer and not (held and known is not None and known.state == "Run"):
            return
        pod.assignment = assignment
        self._follow(pod, assignment)

    def _follow(self, pod: Pod, assignment: Assignment) -> None:
        """Bring the ranks to the assignment."""
        attempt = assignment.attempt
        if pod.ranks is not None and (pod.ranks < attempt or assignment.state == "Hold"):
            self._say(pod, pod.ranks, "Stopped", reason="Stopped", culprit=False)
        if assignment.state == "Hold":
            return
        if pod.worker not in assignment.workers:
            return
        position = assignment.workers.index(pod.worker)
        if assignment.uids is not None and assignment.uids[position] != pod.uid:
            return
        if pod.mark is not None and pod.mark.attempt >= attempt:
            if pod.mark.attempt == attempt and pod.ranks != attempt:
                if pod.mark.state not in ENDED_STATES:
                    self._say(pod, attempt, "Failed", reason="AgentLost", exit_code=69)
                else:
                    pod.reports[attempt] = pod.mark
            return
        assert (pod.uid, attempt) not in self.started, "an attempt was trained twice by the same worker"
        self.started.add((pod.uid, attempt))
        pod.told_by_exit = False
        self._say(pod, attempt, "Starting")
        pod.ranks, pod.joined, pod.steps = attempt, None, 0

    def _say(self, pod: Pod, attempt: int, state: Any, **fields: Any) -> None:
        if state in ENDED_STATES:
            pod.ranks = pod.joined = pod.fault = None
        report = Report(attempt, pod.worker, pod.uid, state, at=self.now + pod.skew, **fields)
        if pod.mark is None or pod.mark.attempt <= attempt:
            pod.mark = report
        pod.reports[attempt] = report

    def _train(self, pod: Pod) -> None:
        """Ranks join, step, finish, fail, or notice that a peer has gone."""
        attempt = pod.ranks
        if attempt is None:
            return
        if pod.fault is not None:
            fault = pod.fault
            self._say(pod, attempt, "Failed", reason=fault.reason, exit_code=fault.exit_code, culprit=True)
            return
        if pod.joined is None:
            self._join(attempt, set(pod.assignment.workers if pod.assignment else ()))
            return
        peers = [peer for peer in (*self.pods.values(), *self.zombies) if peer.uid in pod.joined]
        gone = [
            uid
            for uid in pod.joined
            if not any(peer.uid == uid and (peer.joined == pod.joined or _finished(peer, attempt)) for peer in peers)
        ]
        if gone:
            self._say(pod, attempt, "Failed", reason="Error", exit_code=1, culprit=False, error="Connection reset")
            return
        pod.steps += 1
        if pod.steps >= STEPS and not self.endless:
            self._say(pod, attempt, "Finished", exit_code=0)
        elif pod.mark is not None and pod.mark.state == "Starting":
            self._say(pod, attempt, "Running")

    def _join(self, attempt: int, workers: set[int]) -> None:
        """All ranks of an attempt that are up and have joined nobody yet form a group."""
        ready = {
            pod.worker: pod for pod in (*self.pods.values(), *self.zombies) if pod.ranks == attempt and not pod.joined
        }
        if not workers or ready.keys() < workers:
            return
        group = tuple(ready[worker].uid for worker in sorted(ready))
        self.groups.setdefault(attempt, set()).add(group)
        others = {uid for other in self.groups[attempt] - {group} for uid in other}
        # Attempt 1 names no uids, so that jobs start without the operator: where all of its pods were replaced while
        # the operator is away, the new ones begin it again. Later attempts name their members.
        left = {pod.uid for pod in (*self.pods.values(), *self.zombies)}
        assert not others or (attempt == 1 and not others & left), f"attempt {attempt} was trained by two groups"
        training = [pod.ranks for pod in self.pods.values() if pod.joined and pod.ranks != attempt]
        assert len(training) == 0 or len(training) < len(workers), "two attempts train at a time"
        assert self.status.phase not in TERMINAL_PHASES or self.status.attempt == attempt, "a finished job trains"
        for pod in ready.values():
            pod.joined = group

    def _report_by_exit(self, pod: Pod) -> None:
        """The sure way, where nobody follows.

        Ranks that only suffered wait for a newer attempt for 3 s. Who was acknowledged waits longer: the operator that
        knew may have died before it could write it down.
        """
        if self.followed or pod.mark is None or pod.mark.state not in ("Failed", "Finished") or pod.told_by_exit:
            return
        if pod.mark.attempt not in pod.reports:
            return
        silence = self.now + pod.skew - pod.mark.at
        if pod.acked >= pod.mark.attempt and silence < ACKED_SILENCE:
            return
        if not pod.mark.culprit and silence < 3.0:
            return
        pod.told_by_exit = True
        code = pod.mark.exit_code or 0
        self.end_container(pod, code, "Completed" if code == 0 else "Error", pod.mark)

    def step_stream(self, operator: Operator) -> None:
        """The stream brings what the agents have to say."""
        if not self.followed:
            return
        for pod in self.pods.values():
            if pod.running:
                for report in list(pod.reports.values()):
                    operator.take(report)
                    if report.state in ENDED_STATES:
                        pod.acked = max(pod.acked, report.attempt)

    # Faults.

    def fail_rank(self, worker: int, reason: str, code: int) -> None:
        pod = self.pods.get(f"bert-{worker}")
        if pod is not None and pod.ranks is not None:
            pod.fault = Report(pod.ranks, worker, pod.uid, "Failed", reason=reason, exit_code=code)

    def kill_container(self, worker: int, reason: str) -> None:
        """The whole container dies without a word."""
        pod = self.pods.get(f"bert-{worker}")
        if pod is not None and pod.running:
            self.end_container(pod, 137, reason, None)

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
        """Nodes come back and end what they shouldn't run any more."""
        self.zombies.clear()

    def restart_operator(self, clock: float = 0.0) -> None:
        """A new operator: lists everything anew, has heard nothing of agents yet."""
        self.operator = Operator(clock=clock)
        self.sync(self.operator)

    # Running on.

    def round(self, seconds: float = 0.5) -> None:
        """Everybody does one step, in order, with a fresh view."""
        self.now += seconds
        self.step_controller()
        for name in self.names:
            self.step_kubelet(name)
            self.step_agent(name)
        self.step_stream(self.operator)
        self.sync(self.operator)
        self.run_pass(self.operator)
        self.check()

    def at_rest(self) -> bool:
        """Whether the job has come to where it shall be."""
        suspended = self.spec.run_policy.suspend and self.status.phase == "Suspended"
        return (self.status.phase in TERMINAL_PHASES or suspended) and not self.pods and self.replicas == 0

    def settle(self, rounds: int = 400) -> None:
        """Without new faults every history comes to rest."""
        self.end_zombies()
        for _ in range(rounds):
            if self.at_rest():
                break
            self.round()
        assert self.at_rest(), f"{self.status.phase} after {rounds} rounds: {self.status}"
        self.round()
        before, writes = self.status, len(self.writes)
        for _ in range(3):
            self.round()
        assert self.status == before, "the status doesn't come to rest"
        assert len(self.writes) == writes, f"writes go on: {self.writes[writes:]}"

    def check(self) -> None:
        """What is true at every moment."""
        attempts = [pod.annotation.attempt for pod in self.pods.values()]
        assert max(attempts, default=0) <= max(self.status.attempt, 1), "an assignment went out before the status"
        if self.child is not None and self.child.assignment is not None:
            assert self.child.assignment.attempt <= max(self.status.attempt, 1)
        training = {
            pod.ranks for pod in self.pods.values() if pod.joined and all(_trains(self, uid) for uid in pod.joined)
        }
        assert len(training) <= 1, f"attempts {training} train at the same time"


def check_time(before: JobStatus, status: JobStatus) -> None:
    """The categories are the time since the start, and only grow, except where a wrong clock is made up for."""
    spent = status.time
    if status.start_time is None:
        assert spent is None
        return
    assert spent is not None and spent.until is not None
    until, start = to_seconds(spent.until), to_seconds(status.start_time)
    assert until is not None and start is not None
    amounts = {name: getattr(spent, name) or 0.0 for name in CATEGORIES}
    assert min(amounts.values()) >= 0
    assert round(sum(amounts.values()), 3) == round(max(until - start, 0.0), 3), f"{amounts} from {start} to {until}"
    if before.time is not None and before.time.until is not None and before.time.until <= spent.until:
        shrunk = {name for name in CATEGORIES if amounts[name] < (getattr(before.time, name) or 0.0)}
        assert not shrunk, f"{shrunk} became less"


def _finished(pod: Pod, attempt: int) -> bool:
    return pod.mark is not None and pod.mark.attempt == attempt and pod.mark.state == "Finished"


def _trains(world: World, uid: str) -> bool:
    return any(pod.uid == uid and pod.joined for pod in world.pods.values())
