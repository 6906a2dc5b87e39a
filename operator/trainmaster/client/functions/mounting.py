"""A function's files are in a ConfigMap that every worker mounts, and that goes with its job."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainmaster.api.merge import merge
from trainmaster.api.v1alpha1 import API_VERSION, KIND
from trainmaster.client.async_jobs import FIELD_MANAGER
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound
from trainmaster.client.job import TrainingJob, require_name
from trainmaster.client.jobs import JobClient

FOLDER = "/opt/training-function"
# Of a ConfigMap's data, 1 MiB, less what else an object has.
MAX_BYTES = 700_000
_VOLUME = "training-function"


def submit_with_files(jobs: JobClient, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> TrainingJob:
    """Creates a job whose workers have the files at FOLDER. Raises JobExists, InvalidRequest."""
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"the function and its arguments have {size:,} bytes, and a job takes {MAX_BYTES:,}: have it read data "
            "from a volume or a bucket"
        )
    name = str(manifest["metadata"]["name"])
    require_name(name)
    path = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        # The API server completes it, so that no other job's can be in its way.
        "metadata": {"generateName": f"{name}-function-"},
        "data": {file: content.decode() for file, content in files.items()},
    }
    created = jobs.transport.request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=config_map)
    own = f"{path}/{created['metadata']['name']}"
    try:
        job = jobs.submit(_mounting(manifest, str(created["metadata"]["name"])))
    except ClientError:
        jobs.transport.request("DELETE", own)
        raise
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    # Where somebody has removed it, the job's pods say that it is missing.
    with suppress(JobNotFound):
        jobs.transport.request(
            *("PATCH", own),
            query={"fieldManager": FIELD_MANAGER},
            body={"metadata": {"ownerReferences": [owner]}},
            content_type="application/merge-patch+json",
        )
    return job


def _mounting(manifest: Mapping[str, Any], config_map: str) -> dict[str, Any]:
    mounting = {
        "spec": {
            "containers": [
                {"name": "worker", "volumeMounts": [{"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}]}
            ],
            "volumes": [{"name": _VOLUME, "configMap": {"name": config_map}}],
        }
    }
    body = copy.deepcopy(dict(manifest))
    body["spec"]["podTemplate"] = merge(body["spec"].get("podTemplate") or {}, mounting)
    return body
