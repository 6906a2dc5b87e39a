"""A manifest is a rendered child of a job. It is written again only if its hash has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobIdentity
from trainmaster_operator.rendering.engine import render_template
from trainmaster_operator.wire.names import AGENT_PORT, HASH_ANNOTATION, JOB_NAME_LABEL, JOB_UID_LABEL, MANAGED_BY_LABEL
from trainmaster_operator.wire.signing import canonical


@dataclass(frozen=True)
class Manifest:
    """Manifest is an object to apply. Its annotations include `rendered_hash`.

    `kind` comes from `child_kind`.
    """

    kind: str
    name: str
    rendered_hash: str
    body: Mapping[str, Any]


# API groups that aren't added to the kind.
_BUILT_IN = frozenset({"", "apps", "networking.k8s.io"})


def child_kind(api_version: str, kind: str) -> str:
    """Returns a kind that is unique among the children.

    Three gang schedulers define a PodGroup. So a kind that isn't built in includes its API group, as in kubectl.
    """
    group, slash, _ = api_version.partition("/")
    return kind if not slash or group in _BUILT_IN else f"{kind}.{group}"


def finish(body: dict[str, Any]) -> Manifest:
    """Returns the manifest with the hash of its body in the annotations."""
    rendered_hash = hashlib.sha256(canonical(body).encode()).hexdigest()
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), HASH_ANNOTATION: rendered_hash}
    return Manifest(
        kind=child_kind(body["apiVersion"], body["kind"]),
        name=metadata["name"],
        rendered_hash=rendered_hash,
        body={**body, "metadata": {**metadata, "annotations": annotations}},
    )


def training_name(job: JobIdentity) -> str:
    """Returns the name of the ConfigMap that holds spec.training."""
    return f"{job.name}-training"


def child(
    template: str, job: JobIdentity, name: str, *, labels: Mapping[str, str] | None = None, **values: Any
) -> dict[str, Any]:
    """Returns a child from its template, without the hash. `labels` are added to the labels of all children."""
    labels = {JOB_NAME_LABEL: job.name, JOB_UID_LABEL: job.uid, **(labels or {}), MANAGED_BY_LABEL: "trainmaster"}
    # The label that selects all pods of the job, and that no other job's pods have.
    pods = {JOB_UID_LABEL: job.uid}
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    return render_template(
        template, job=job, name=name, labels=labels, owner=owner, pods=pods, agent_port=AGENT_PORT, **values
    )
