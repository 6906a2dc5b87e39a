"""Every child of a job has the same: a name, the job's labels, and the job as its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.rendering.layout import JobIdentity
from trainmaster_operator.wire.names import JOB_NAME_LABEL, JOB_UID_LABEL, MANAGED_BY_LABEL


@dataclass(frozen=True)
class Owner:
    """Owner is the job as owner of its children."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class ChildContext:
    """ChildContext is what the template of every child gets."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    owner: Owner


def training_name(job: JobIdentity) -> str:
    """Returns the name of the ConfigMap that holds spec.training."""
    return f"{job.name}-training"


def child_context(job: JobIdentity, name: str, labels: Mapping[str, str] | None = None) -> ChildContext:
    """Returns name, labels and owner of a child."""
    return ChildContext(
        name=name,
        namespace=job.namespace,
        labels={
            JOB_NAME_LABEL: job.name,
            JOB_UID_LABEL: job.uid,
            **(labels or {}),
            MANAGED_BY_LABEL: "trainmaster",
        },
        owner=Owner(API_VERSION, KIND, job.name, job.uid),
    )
