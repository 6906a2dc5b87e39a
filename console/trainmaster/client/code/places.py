"""A job's code is in the ConfigMap `<job>-code`, which the job owns once it is there."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from trainmaster.client.code.archive import Archive
from trainmaster.client.errors import InvalidRequest, JobExists, JobNotFound
from trainmaster.client.jobs import FIELD_MANAGER, JobClient, TrainingJob
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.wire.names import CODE_ARCHIVE

CODE_LABEL = "trainmaster.dev/code-of"
# Of an archive; base64 and what else an object has stay below etcd's 1.5 MB, and a pod's start below a second.
MAX_CONFIG_MAP_BYTES = 700_000
# Of all data of a ConfigMap (k8s.io/kubernetes pkg/apis/core/types.go, MaxSecretSize: 1 MiB).
MAX_DATA_BYTES = 1_000_000


def config_map_name(job: str) -> str:
    """Returns the name of a job's ConfigMap of code."""
    return f"{job}-code"


def fits_config_map(archive: Archive) -> bool:
    """Returns whether a ConfigMap holds the archive."""
    return len(archive.data) <= MAX_CONFIG_MAP_BYTES


def create_config_map(jobs: JobClient, job: str, archive: Archive) -> None:
    """Creates a new job's ConfigMap; one that a job of this name has left behind makes way. Raises JobExists."""
    name = config_map_name(job)
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {CODE_LABEL: job}},
        "binaryData": {CODE_ARCHIVE: b64encode(archive.data).decode()},
    }
    try:
        _create(jobs, body)
        return
    except JobExists:
        present = _get(jobs, name)
    if present is not None:
        if ((present["metadata"].get("labels")) or {}).get(CODE_LABEL) != job:
            raise InvalidRequest(
                f"ConfigMap {name} is there and isn't a job's code: give the job another name, or remove it"
            )
        require_free(jobs, job)
        # Made anew and not changed: the garbage collector may be about to remove it with the job before.
        _delete(jobs, name, present["metadata"].get("uid"))
    _create(jobs, body)


def require_free(jobs: JobClient, job: str) -> None:
    """Raises JobExists where there is a job of this name."""
    try:
        jobs.get(job)
    except JobNotFound:
        return
    raise JobExists(f'distributedtrainingjobs.trainmaster.dev "{job}" already exists')


def give_to_job(jobs: JobClient, job: TrainingJob) -> None:
    """Makes the job the ConfigMap's owner, so that it goes with the job."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    _patch(jobs, config_map_name(job.name), {"metadata": {"ownerReferences": [owner]}})


def remove_config_map(jobs: JobClient, job: str) -> None:
    """Removes the ConfigMap of a job that was refused."""
    _delete(jobs, config_map_name(job), None)


def replace_archive(jobs: JobClient, job: TrainingJob, name: str, archive: Archive) -> None:
    """Puts new code beside the code that runs, which pods that come back need until the job names the new one."""
    present = _get(jobs, name)
    data: dict[str, str | None] = {CODE_ARCHIVE: b64encode(archive.data).decode()}
    if present is None:
        create_body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {CODE_LABEL: job.name}},
            "binaryData": data,
        }
        _create(jobs, create_body)
        if name == config_map_name(job.name):
            give_to_job(jobs, job)
        return
    known = present.get("binaryData") or {}
    data |= dict.fromkeys((key for key in known if key != CODE_ARCHIVE), None)
    digest, before = job.raw["spec"]["code"]["digest"], known.get(CODE_ARCHIVE)
    if before is not None and len(b64decode(before)) + len(archive.data) <= MAX_DATA_BYTES:
        data[f"{digest}.tar.gz"] = before
    _patch(jobs, name, {"binaryData": data})


def _path(jobs: JobClient, name: str = "") -> str:
    return f"/api/v1/namespaces/{jobs.namespace}/configmaps" + (f"/{name}" if name else "")


def _create(jobs: JobClient, body: Mapping[str, Any]) -> None:
    jobs.transport.request("POST", _path(jobs), query={"fieldManager": FIELD_MANAGER}, body=body)


def _patch(jobs: JobClient, name: str, body: Mapping[str, Any]) -> None:
    jobs.transport.request(
        "PATCH",
        _path(jobs, name),
        query={"fieldManager": FIELD_MANAGER},
        body=body,
        content_type="application/merge-patch+json",
    )


def _get(jobs: JobClient, name: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = jobs.transport.request("GET", _path(jobs, name))
    except JobNotFound:
        return None
    return found


def _delete(jobs: JobClient, name: str, uid: str | None) -> None:
    body = {"preconditions": {"uid": uid}} if uid else None
    try:
        jobs.transport.request("DELETE", _path(jobs, name), body=body)
    except JobNotFound:
        # Somebody was faster.
        return
