"""Simulates an operator: its view may be outdated, it has its own clock, and its passes can be interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.unit.reconciling.builders import SETTINGS
from trainmaster_operator.api.v1alpha1 import JobSpec, JobStatus
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.decision import Apply, Assign, DeleteJob, DeletePod, Touch
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Job, Observed, PodView, StreamView
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report, merge
from trainmaster_operator.wire.stream import WorkerLine

if TYPE_CHECKING:
    from tests.unit.reconciling.world import World


START = 1_795_233_600.0


class Killed(Exception):
    """Signals that the operator's process ended in the middle of a pass."""


class Outdated(Exception):
    """Signals that a precondition failed (409 Conflict)."""


@dataclass
class Operator:
    """Simulates one operator's process: its observations and its clock."""

    clock: float = 0.0
    since: float = 0.0
    version: int = 0
    status: JobStatus = field(default_factory=JobStatus)
    spec: JobSpec | None = None
    restart_request: str | None = None
    pods: dict[str, PodView] = field(default_factory=dict)
    child: ChildView | None = None
    service: ChildView | None = None
    reports: dict[tuple[int, int], Report] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        """Records a report as the store does: an earlier report doesn't replace an end."""
        key = (report.attempt, report.worker)
        self.reports[key] = merge(self.reports.get(key), report)

    def run_pass(self, world: World, dies_after: int | None = None) -> bool:
        """Decides and writes, and is killed before write number `dies_after`. Returns whether the operator survived."""
        left = [math.inf if dies_after is None else dies_after]

        def writes(what: str) -> None:
            if left[0] <= 0:
                raise Killed
            left[0] -= 1
            world.writes.append(what)

        try:
            self._pass(world, writes)
        except Killed:
            return False
        except Outdated:
            world.show_job(self)
        return True

    def _pass(self, world: World, writes: Callable[[str], None]) -> None:
        job = Job(
            "ml",
            "bert",
            world.uid,
            world.generation,
            START,
            self.spec,
            self.status,
            restart_request=self.restart_request,
        )
        decision = decide(job, self.observed(world), world.now + self.clock, SETTINGS)
        if decision.status != self.status:
            writes("status")
            if self.version != world.version:
                raise Outdated
            world.write_status(decision.status)
            world.show_job(self)
        for action in decision.actions:
            match action:
                case Apply(manifest=manifest):
                    writes(f"apply {manifest['kind']}")
                    world.apply(self, manifest)
                case Assign(assignment=assignment, pods=pods):
                    writes("push")
                    world.push(assignment)
                    for pod in pods:
                        writes("annotate")
                        world.annotate(self, pod.name, pod.uid, assignment)
                case Touch(pods=pods):
                    for pod in pods:
                        writes("touch")
                        world.touch(self, pod.name, pod.uid)
                case DeletePod(pod=pod):
                    writes("delete pod")
                    world.delete_as_seen(self, pod.name, pod.uid)
                case DeleteJob():
                    world.deleted = True

    def observed(self, world: World) -> Observed:
        connected = world.watched and any(pod.running for pod in world.pods.values())
        workers = tuple(
            WorkerLine(pod.worker, pod.uid, pod.assignment.attempt if pod.assignment else 0, connected=True)
            for pod in world.pods.values()
            if pod.running and connected and not pod.frozen
        )
        progress = {
            pod.worker: {pod.worker: RankProgress(step=pod.steps, total_steps=world.steps)}
            for pod in world.pods.values()
            if connected and not pod.frozen and pod.ranks == self.status.attempt and pod.joined
        }
        return Observed(
            since=self.since,
            kills=dict(world.kills),
            children=tuple(child for child in (self.service, self.child) if child is not None),
            pods=tuple(self.pods.values()),
            reports=tuple(self.reports.values()),
            progress=progress,
            progress_attempt=self.status.attempt if progress else 0,
            progress_at=world.now if progress else None,
            stream=StreamView(connected=connected, leader=world.leader, since=START, workers=workers),
        )
