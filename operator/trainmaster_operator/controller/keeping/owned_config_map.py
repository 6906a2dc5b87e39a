"""A ConfigMap in which something of a job is kept: owned by the job, so that it outlives the pods and goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.controller.watching.watched import CONTENT_LABEL
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.names import JOB_NAME_LABEL, JOB_UID_LABEL, MANAGED_BY_LABEL


def owned_config_map(job: Job, name: str, content: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Returns the object to create. `content` is its CONTENT_LABEL, which keeps it out of the operator's watch."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {
                JOB_NAME_LABEL: job.name,
                JOB_UID_LABEL: job.uid,
                MANAGED_BY_LABEL: "trainmaster",
                CONTENT_LABEL: content,
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "data": dict(data),
    }
