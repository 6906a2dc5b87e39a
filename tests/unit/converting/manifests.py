"""Builds manifests of other operators, and converts them into a form that a test can compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.converting import Note, convert, dotted
from trainmaster_operator.api.parsing import parse_job


@dataclass(frozen=True)
class Converted:
    """Holds the resulting job, the documents beside it, and the notes by their fields."""

    job: dict[str, Any]
    beside: list[Mapping[str, Any]]
    notes: dict[str, Note]

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.job["spec"])

    def became(self, field: str) -> list[tuple[str, Any]]:
        """Returns the fields of the job that a kept field became."""
        assert self.notes[field].answer.outcome == "kept", self.notes[field]
        return list(self.notes[field].became)

    def reason(self, field: str) -> tuple[str, str]:
        """Returns whether a field was dropped or refused, and why."""
        answer = self.notes[field].answer
        return answer.outcome, answer.text

    def refused(self) -> dict[str, str]:
        """Returns the reason of each refused field."""
        return {name: note.answer.text for name, note in self.notes.items() if note.answer.outcome == "refused"}


def converted(*manifests: Mapping[str, Any], valid: bool = True) -> Converted:
    """Converts manifests, the first of which is the job; `valid` is false if the result can't be valid."""
    conversion = convert(manifests)[0]
    assert conversion.notes is not None
    job = dict(conversion.documents[-1])
    if valid:
        parse_job(job)
    notes = {dotted(note.field): note for note in conversion.notes if note.manifest == 0}
    notes |= {f"runtime:{dotted(note.field)}": note for note in conversion.notes if note.manifest}
    return Converted(job, list(conversion.documents[:-1]), notes)


def pod(command: list[str] | None = None, name: str = "pytorch", **fields: Any) -> dict[str, Any]:
    """Returns a pod template with one container; `pod_fields` lists the capitalised fields, which belong to the pod."""
    pod_fields = fields.pop("pod_fields", {})
    container = {"name": name, "image": "registry.example.com/train:1", **fields}
    if command is not None:
        container["command"] = command
    return {"spec": {"containers": [container], **pod_fields}}


# Names of fields that have a meaning somewhere.
NAMES = [
    "name",
    "spec",
    "replicas",
    "template",
    "containers",
    "command",
    "env",
    "valueFrom",
    "limits",
    "metadata",
    "labels",
    "volumes",
    "restartPolicy",
    "torch",
    "kueue.x-k8s.io/queue-name",
    "unheard-of",
]
TORCHRUN = ["torchrun", "train.py"]


def pytorch_job(spec: Mapping[str, Any] | None = None, **replicas: Any) -> dict[str, Any]:
    """Returns a PyTorchJob with one worker, or with the given replicas."""
    specs = replicas or {"Worker": {"replicas": 1, "template": pod(TORCHRUN)}}
    body = {"pytorchReplicaSpecs": specs, **(spec or {})}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "resnet"}, "spec": body}


def train_job(runtime: str = "torch-distributed", **spec: Any) -> dict[str, Any]:
    """Returns a TrainJob that uses a runtime."""
    body = {"runtimeRef": {"name": runtime}, **spec}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "finetune"},
        "spec": body,
    }


def runtime(*jobs: Mapping[str, Any], name: str = "ours", policy: Mapping[str, Any] | None = None, **spec: Any) -> Any:
    """Returns a ClusterTrainingRuntime with these replicatedJobs."""
    template = {"spec": {"replicatedJobs": list(jobs)}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy or {"numNodes": 1, "torch": {}}, "template": template, **spec},
    }


def replicated(name: str, template: Mapping[str, Any], job: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    """Returns a replicatedJob of a JobSet."""
    return {"name": name, "template": {"spec": {"template": template, **(job or {})}}, **fields}


def job_set(*jobs: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a JobSet with these replicatedJobs."""
    metadata: dict[str, Any] = {"name": "set", **({"annotations": annotations} if annotations else {})}
    body = {"replicatedJobs": list(jobs), **spec}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": body}
