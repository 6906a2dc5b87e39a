"""Builds small API objects and decisions."""

from __future__ import annotations

from typing import Any

from tests.signer import KEYS
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import Action, Apply, Decision, JobEvent
from trainmaster_operator.reconciling.observed.snapshot import Job, Observed, PodView
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, HASH_ANNOTATION

NAMESPACE = "team-a"
JOB_UID = "11111111-1111-1111-1111-111111111111"


def job(name: str = "bert", *, uid: str = JOB_UID, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": uid},
        "spec": {"image": "trainer:1", "command": ["python", "train.py"], "workers": 2, **spec},
        "status": status or {},
    }


def labels(name: str = "bert", uid: str = JOB_UID) -> dict[str, str]:
    return {"trainmaster.dev/job-name": name, "trainmaster.dev/job-uid": uid}


def owner(uid: str = JOB_UID) -> list[dict[str, Any]]:
    return [{"kind": "DistributedTrainingJob", "name": "bert", "uid": uid, "controller": True}]


def set_uid(name: str = "bert", job_uid: str = JOB_UID) -> str:
    """Returns the uid of the StatefulSet that `child` builds and that controls the pods of `pod`."""
    return f"set-{name}-{job_uid}"


def assignment(
    attempt: int = 1, workers: tuple[int, ...] = (0, 1), name: str = "bert", uid: str = JOB_UID
) -> Assignment:
    return Assignment(
        job=uid,
        attempt=attempt,
        workers=workers,
        uids=None,
        hosts=tuple(f"{name}-{worker}.{name}.{NAMESPACE}.svc" for worker in workers),
        port=28500 + attempt,
    )


def pod(
    index: int = 0,
    *,
    name: str = "bert",
    uid: str | None = None,
    job_uid: str = JOB_UID,
    assigned: Assignment | None = None,
    ip: str = "127.0.0.1",
    **status: Any,
) -> dict[str, Any]:
    annotations = {ASSIGNMENT_ANNOTATION: KEYS.sign(assigned)} if assigned else {}
    return {
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"{name}-{index}",
            "uid": uid or f"pod-{name}-{index}",
            "labels": {**labels(name, job_uid), "apps.kubernetes.io/pod-index": str(index)},
            "annotations": annotations,
            "ownerReferences": [
                {"kind": "StatefulSet", "name": name, "uid": set_uid(name, job_uid), "controller": True}
            ],
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIP": ip, "containerStatuses": [running()], **status},
    }


def running() -> dict[str, Any]:
    return {
        "name": "worker",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-21T04:00:01Z"}},
    }


def terminated(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    state = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-11-21T04:00:09Z"}
    return {"name": "worker", "ready": False, "restartCount": 0, "state": {"terminated": state}}


def child(
    kind: str, name: str = "bert", *, owner_uid: str | None = JOB_UID, rendered_hash: str = "h1"
) -> dict[str, Any]:
    api_version = {"StatefulSet": "apps/v1"}.get(kind, "v1")
    metadata: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": name,
        "labels": labels(),
        "annotations": {HASH_ANNOTATION: rendered_hash},
    }
    if owner_uid:
        metadata["ownerReferences"] = owner(owner_uid)
        if kind == "StatefulSet":
            metadata["uid"] = set_uid(name, owner_uid)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {"replicas": 2, "template": {}}}


def decided(status: JobStatus, *actions: Action, events: tuple[JobEvent, ...] = ()) -> Decision:
    return Decision(status, actions, events)


def ref(index: int = 0, uid: str | None = None) -> PodView:
    return PodView(f"bert-{index}", uid or f"pod-bert-{index}", index, "bert", "Running", 0.0)


def children_decider(job: Job, observed: Observed, now: float, settings: object) -> Decision:
    """Makes the smallest decision for a job: a Service and a StatefulSet, and Starting once they exist."""
    del now, settings
    have = {(item.kind, item.name) for item in observed.children}
    wanted = [(kind, job.name) for kind in ("Service", "StatefulSet")]
    actions = tuple(Apply(child(kind, name, owner_uid=job.uid)) for kind, name in wanted if (kind, name) not in have)
    phase = "Running" if len(observed.pods) >= 2 else "Starting"
    return Decision(JobStatus(phase=phase, attempt=1), actions)
