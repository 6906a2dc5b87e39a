"""Builds a job and its observations. By default it has two workers, `bert-0` and `bert-1`, at NOW."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.actions.assignments import desired_assignment
from trainmaster_operator.reconciling.actions.children import apply_children
from trainmaster_operator.reconciling.decision import (
    Apply,
    Assign,
    Decision,
    DeleteChild,
    DeleteJob,
    DeletePod,
    EnsureAgent,
    ReportWorkload,
    Touch,
)
from trainmaster_operator.reconciling.observed.situation import Situation, survey
from trainmaster_operator.reconciling.observed.snapshot import (
    ChildView,
    ContainerEnd,
    ContainerView,
    Job,
    Observed,
    PodView,
    StreamView,
    termination_reports,
)
from trainmaster_operator.rendering import Settings
from trainmaster_operator.wire.report import Report, merge
from trainmaster_operator.wire.stream import WorkerLine

NOW = 1_795_233_600.0
UID = "5f0c7a7e-job"
SETTINGS = Settings()


def job(status: JobStatus | None = None, **spec: Any) -> Job:
    """Returns a job of two workers that train with `python train.py`; keywords are the spec's fields as on the wire."""
    raw: dict[str, Any] = {"image": "example.com/train:1", "command": ["python", "train.py"], "workers": 2, **spec}
    if "workerGroups" in raw:
        del raw["workers"]
    return Job(
        namespace="ml",
        name="bert",
        uid=UID,
        generation=1,
        created_at=NOW - 1000,
        spec=parse_spec(raw, "bert"),
        status=status or JobStatus(),
    )


def running(
    attempt: int = 1, *, phase: str = "Running", ago: float = 100.0, workers: int = 2, **fields: Any
) -> JobStatus:
    """Returns a running status of an attempt that was opened `ago` seconds before NOW, with the pods of `pod`."""
    values: dict[str, Any] = {
        "phase": phase,
        "attempt": attempt,
        "start_time": to_text(NOW - 1000),
        "attempt_start_time": to_text(NOW - ago),
        "pod_uids": [f"uid-{worker}" for worker in range(workers)],
        "pod_restart_counts": [0] * workers,
        "conditions": [
            Condition(
                type="Running",
                status="True" if phase == "Running" else "False",
                reason=phase,
                last_transition_time="2026-11-20T00:00:00Z",
            )
        ],
        **fields,
    }
    return JobStatus.model_validate(values)


def container(state: str = "running", **fields: Any) -> ContainerView:
    """Returns the worker's container, running for 90 s."""
    values: dict[str, Any] = {"name": "worker", "state": state, "ready": state == "running", "restarts": 0}
    if state == "running":
        values["started_at"] = NOW - 90
    return ContainerView(**{**values, **fields})


def ended(
    exit_code: int, reason: str = "Error", *, ago: float = 1.0, message: str = "", report: Report | None = None
) -> ContainerEnd:
    """Returns a container's end."""
    return ContainerEnd(exit_code, reason, message, NOW - 90, NOW - ago, report)


def pod(worker: int, **fields: Any) -> PodView:
    """Returns a running worker's pod on its own node."""
    values: dict[str, Any] = {
        "name": f"bert-{worker}",
        "uid": f"uid-{worker}",
        "worker": worker,
        "set_name": "bert",
        "phase": "Running",
        "created_at": NOW - 100,
        "node": f"node-{worker}",
        "ip": f"10.0.0.{worker}",
        "ready": True,
        "worker_container": container(),
    }
    return PodView(**{**values, **fields})


def pods(*given: PodView, workers: int = 2) -> tuple[PodView, ...]:
    """Returns all workers' pods, with the given ones in their places."""
    special = {pod.worker: pod for pod in given}
    return tuple(special.get(worker) or pod(worker) for worker in range(workers))


def said(worker: int, state: str, attempt: int = 1, *, ago: float = 0.1, **fields: Any) -> Report:
    """Returns a worker's report."""
    values: dict[str, Any] = {
        "attempt": attempt,
        "worker": worker,
        "uid": f"uid-{worker}",
        "state": state,
        "at": NOW - ago,
    }
    if state == "Failed":
        values |= {"exit_code": 1, "reason": "Error", "error": "ValueError: bad"}
    if state == "Finished":
        values |= {"exit_code": 0}
    return Report(**{**values, **fields})


def all_up(attempt: int = 1, workers: int = 2) -> tuple[Report, ...]:
    """Returns reports in which every worker's ranks are up."""
    return tuple(said(worker, "Running", attempt) for worker in range(workers))


def stream(attempt: int = 1, workers: Iterable[int] = (0, 1), **seen: int) -> StreamView:
    """Returns a connected stream whose workers have seen the attempt; `w1=0` means that worker 1 has seen none."""
    workers = tuple(
        WorkerLine(worker, f"uid-{worker}", seen.get(f"w{worker}", attempt), connected=True) for worker in workers
    )
    return StreamView(connected=True, leader=0, since=NOW - 50, workers=workers)


def observed(*reports: Report, given: Iterable[PodView] | None = None, attempt: int = 1, **fields: Any) -> Observed:
    """Returns pods, children and reports for a job in its attempt."""
    values: dict[str, Any] = {"pods": tuple(pods() if given is None else given)}
    around = Observed(**{"stream": stream(attempt), **values, **fields})
    return replace(around, reports=merged(reports, around.pods))


def merged(reports: Iterable[Report], around: Iterable[PodView]) -> tuple[Report, ...]:
    """Merges reports with those in ended containers, as the store does."""
    known: dict[tuple[int, int], Report] = {}
    for report in (*reports, *(report for pod in around for report in termination_reports(pod))):
        place = report.attempt, report.worker
        known[place] = merge(known.get(place), report)
    return tuple(known.values())


def situation(of: Job, around: Observed, now: float = NOW) -> Situation:
    """Returns the facts that policies see."""
    assert of.spec is not None
    return survey(of, of.spec, around, now, SETTINGS)


def settled(of: Job, around: Observed) -> Observed:
    """Returns the same observation with finished children and annotations, so that there is nothing left to write."""
    facts = situation(of, around)
    assignment = desired_assignment(facts)
    children = tuple(
        ChildView(
            kind=apply.manifest["kind"],
            name=apply.manifest["metadata"]["name"],
            uid=f"uid-{apply.manifest['kind']}",
            rendered_hash=apply.manifest["metadata"]["annotations"]["trainmaster.dev/rendered-hash"],
            owner_uid=UID,
            replicas=apply.manifest["spec"].get("replicas") if apply.manifest["kind"] == "StatefulSet" else None,
            assignment=assignment if apply.manifest["kind"] == "StatefulSet" else None,
        )
        for apply in apply_children(facts, assignment)
    )
    return replace(around, children=children, pods=tuple(replace(pod, assignment=assignment) for pod in around.pods))


def decided(of: Job, around: Observed, now: float = NOW) -> Decision:
    """Returns the decision, and checks that deciding again on the same observation changes nothing."""
    decision = decide(of, around, now, SETTINGS)
    again = decide(replace(of, status=decision.status), around, now, SETTINGS)
    third = decide(replace(of, status=again.status), around, now, SETTINGS)
    assert third.status == again.status, "the status doesn't settle"
    return decision


def kinds(decision: Decision) -> list[str]:
    """Returns the names of the actions; applies have their kind, and assignments have attempt and state."""
    names = []
    for action in decision.actions:
        match action:
            case Apply(manifest=manifest):
                count = f" x{manifest['spec']['replicas']}" if manifest["kind"] == "StatefulSet" else ""
                names.append(f"Apply {manifest['kind']}{count}")
            case Assign(assignment=assignment, pods=to):
                names.append(f"Assign {assignment.attempt} {assignment.state} to {','.join(pod.name for pod in to)}")
            case EnsureAgent(name=agent):
                names.append(f"Ensure {agent}")
            case Touch(pods=to):
                names.append(f"Touch {','.join(pod.name for pod in to)}")
            case DeletePod(pod=deleted, force=force):
                names.append(f"Delete {deleted.name}{' by force' if force else ''}")
            case DeleteChild(kind=kind):
                names.append(f"Delete {kind}")
            case ReportWorkload(condition=reported):
                names.append(f"Report {reported.type}")
            case DeleteJob():
                names.append("Delete job")
    return names


def happened(decision: Decision) -> list[str]:
    """Returns the reasons of the events."""
    return [event.reason for event in decision.events]
