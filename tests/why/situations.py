"""The situations of this package's YAML files become typed values, with short forms expanded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
NAMESPACE = "team"
_API_VERSIONS = {
    "Pod": "v1",
    "Node": "v1",
    "ResourceQuota": "v1",
    "PersistentVolumeClaim": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "Lease": "coordination.k8s.io/v1",
    "Workload": "kueue.x-k8s.io/v1beta2",
    "LocalQueue": "kueue.x-k8s.io/v1beta2",
    "ClusterQueue": "kueue.x-k8s.io/v1beta2",
}
_OF_METADATA = ("name", "namespace", "labels", "createdAt", "deletedAt")
_WITHOUT_NAMESPACE = ("Node", "ClusterQueue")


@dataclass(frozen=True)
class Expected:
    """Describes one situation: the cluster's objects, and the cause that a person names."""

    theme: str
    name: str
    job: str
    cause: str
    person: str
    says: tuple[str, ...]
    objects: tuple[Mapping[str, Any], ...]
    forbidden: tuple[str, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    is_recorded: bool = False
    now: datetime | None = None
    """The moment of the question; None for the present."""


@cache
def all_situations() -> tuple[Expected, ...]:
    """Returns all situations, in the order of the files."""
    return tuple(one for path in sorted(FOLDER.glob("*.yaml")) for one in _read(path))


def _read(path: Path) -> Iterator[Expected]:
    theme = yaml.load(path.read_text(), yaml.CSafeLoader)
    for raw in theme.get("situations", ()):
        job = _job(raw)
        name = job["metadata"]["name"]
        objects = [job, *(_whole(item, name) for item in raw.get("objects", ()))]
        objects += [_event(text) for text in raw.get("events", ())]
        if "failure" in raw:
            objects.append(_evidence(name, raw))
        yield Expected(
            theme["theme"], raw["name"], name, raw["cause"], raw["person"], tuple(raw["says"]), tuple(objects),
            tuple(raw.get("forbidden", ())), raw.get("logs", {}), raw.get("metrics", {}),
            now=datetime.fromisoformat(raw["now"]) if "now" in raw else None,
        )  # fmt: skip
    for raw in theme.get("recorded", ()):
        found = tuple(json.loads((FOLDER / "recorded" / f"{raw['job']}.json").read_text()))
        yield Expected(
            theme["theme"],
            raw["job"],
            raw["job"],
            raw["cause"],
            raw["person"],
            tuple(map(str, raw["says"])),
            found,
            is_recorded=True,
        )


def _job(raw: Mapping[str, Any]) -> dict[str, Any]:
    short = raw.get("job", {"name": "job", "spec": {"workers": 2}})
    metadata = {"name": short["name"], "namespace": NAMESPACE, "uid": f"uid-{short['name']}"}
    if "annotations" in short:
        metadata["annotations"] = short["annotations"]
    if "deleting" in short:
        metadata |= {"deletionTimestamp": short["deleting"], "finalizers": short["finalizers"]}
    status = json.loads(json.dumps(short.get("status", {})))
    if "failure" in raw:
        status = _failed(raw["failure"], raw["error"], short["spec"]["workers"])
    for condition in status.get("conditions", ()):
        condition.setdefault("lastTransitionTime", "2026-11-25T03:00:00Z")
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": metadata,
        "spec": short["spec"],
        "status": status,
    }


def _failed(failure: Mapping[str, Any], error: str, workers: int) -> dict[str, Any]:
    """Returns a job that ended with its only attempt."""
    if "exception" in failure:
        who = f"rank {failure['rank']} (worker {failure['worker']}, pod job-{failure['worker']})"
        message = f"{failure['exception']}, at {failure['location']}; {who} ended with exit code {failure['exitCode']}"
    else:
        who = f"worker {failure['worker']}" + (f" (rank {failure['rank']})" if "rank" in failure else "")
        message = f"{who} ended with exit code {failure['exitCode']}"
        if error.strip():
            message += ": " + error.strip().splitlines()[-1].strip()
    whole = {
        "attempt": 1,
        "pod": f"job-{failure['worker']}",
        "failedAt": "2026-11-25T03:00:00Z",
        "message": message,
        **failure,
    }
    ended = {
        "type": "Failed",
        "status": "True",
        "reason": "MaxRestartsExceeded",
        "message": f"attempt 1 failed: {whole['message']}",
    }
    counts = {"desired": workers}
    return {"phase": "Failed", "attempt": 1, "conditions": [ended], "failures": [whole], "workers": counts}


def _evidence(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    failure = raw["failure"]
    report = {"state": "Failed", "reason": failure["reason"], "exitCode": failure["exitCode"], "error": raw["error"]}
    kept = {"attempt": 1, "failure": dict(failure), "workers": {str(failure["worker"]): report}}
    text = json.dumps(kept | {"ranks": raw.get("ranks", {})})
    metadata = {"name": f"{name}-evidence", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"attempt-1.json": text}}


def _whole(raw: Mapping[str, Any], job: str) -> dict[str, Any]:
    """Returns an object with the metadata that every object has."""
    item = {key: value for key, value in raw.items() if key not in _OF_METADATA}
    metadata: dict[str, Any] = {"name": raw["name"], "labels": dict(raw.get("labels", {}))}
    if raw["kind"] not in _WITHOUT_NAMESPACE:
        metadata["namespace"] = raw.get("namespace", NAMESPACE)
    if "createdAt" in raw:
        metadata["creationTimestamp"] = raw["createdAt"]
    if "deletedAt" in raw:
        metadata["deletionTimestamp"] = raw["deletedAt"]
    if metadata.get("namespace") == NAMESPACE and raw["name"].startswith(job) and raw["kind"] in ("Pod", "StatefulSet"):
        metadata["labels"]["trainmaster.dev/job-name"] = job
        if raw["kind"] == "Pod":
            metadata["labels"]["apps.kubernetes.io/pod-index"] = raw["name"].rpartition("-")[2]
    return {"apiVersion": raw.get("apiVersion") or _API_VERSIONS[raw["kind"]], **item, "metadata": metadata}


def _event(text: str) -> dict[str, Any]:
    """Returns an event written as "Kind/name Reason: message"."""
    head, _, message = text.partition(": ")
    about, _, reason = head.partition(" ")
    kind, _, name = about.partition("/")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason}", "namespace": NAMESPACE, "creationTimestamp": "2026-11-25T03:00:00Z"},
        "involvedObject": {"kind": kind, "name": name, "namespace": NAMESPACE},
        "reason": reason,
        "message": message,
        "type": "Warning",
    }
