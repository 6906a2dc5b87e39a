"""Simulates a pod: its object, its container, and the memory and processes of its agent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmaster_operator.reconciling.observed.snapshot import ContainerEnd, ContainerView, PodView
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.report import ENDED, Report

FIRST_BACK_OFF, LONGEST_BACK_OFF = 10.0, 300.0


@dataclass
class Pod:
    """Holds a pod on the server, its container on a node, and the agent in it."""

    name: str
    uid: str
    worker: int
    annotation: Assignment
    created_at: float
    # The difference between the node's clock and the world's.
    skew: float
    deleting: bool = False
    evicted: bool = False
    touched_at: float | None = None
    node: str | None = None
    no_room: bool = False
    # The container
    running: bool = False
    restarts: int = 0
    started_at: float | None = None
    end: ContainerEnd | None = None
    last_end: ContainerEnd | None = None
    start_again_at: float = 0.0
    # The downward-API file. If `late`, it doesn't follow the annotation until the pod is touched.
    file: Assignment | None = None
    late: bool = False
    # The volume with the user's code changes together with the file.
    code: str | None = None
    # The agent. `saved` and `reported_by_exit` are on disk; the rest is lost with the process.
    saved: Report | None = None
    reported_by_exit: bool = False
    assignment: Assignment | None = None
    reports: dict[int, Report] = field(default_factory=dict)
    acked: int = 0
    # The ranks: their attempt, the uids that they have joined with, the steps done, and how they will fail.
    ranks: int | None = None
    joined: tuple[str, ...] | None = None
    steps: int = 0
    fault: Report | None = None
    # The time at which the ranks start to join an attempt that others continue
    preparing: bool = False
    # The time since which a peer is gone whose loss the ranks survive
    broken_since: float | None = None
    # Agent and ranks are stalled: they send nothing and don't end.
    frozen: bool = False

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

    def end_container(self, now: float, code: int, reason: str, report: Report | None) -> None:
        """Ends the agent's process, and the ranks with it."""
        self.stop_process()
        at = math.floor(now + self.skew)
        self.end = ContainerEnd(code, reason, "" if report is None else "{}", self.started_at, at, report)
        self.started_at = None
        wait = 0.0 if self.restarts == 0 else min(FIRST_BACK_OFF * 2.0 ** (self.restarts - 1), LONGEST_BACK_OFF)
        self.start_again_at = now + wait

    def stop_process(self) -> None:
        self.running = self.frozen = False
        self.ranks = self.joined = self.fault = self.assignment = self.broken_since = None
        self.preparing = False
        self.reports = {}

    def say(self, now: float, attempt: int, state: Any, **fields: Any) -> None:
        """Lets the agent make a report, and save it."""
        if state in ENDED:
            self.ranks = self.joined = self.fault = self.broken_since = None
            self.preparing = False
        report = Report(attempt, self.worker, self.uid, state, at=now + self.skew, **fields)
        if self.saved is None or self.saved.attempt <= attempt:
            self.saved = report
        self.reports[attempt] = report

    def has_finished(self, attempt: int) -> bool:
        return self.saved is not None and self.saved.attempt == attempt and self.saved.state == "Finished"


@dataclass
class Room:
    """Assigns nodes for one pod each, first come, first served."""

    free: int

    def take(self) -> bool:
        if self.free <= 0:
            return False
        self.free -= 1
        return True
