"""Submits jobs with code. The requests are ordered so that no pod waits for its code and nothing is left behind.

The code is stored on a claim (see `claims`) or in the ConfigMap `<job>-code`. The job owns this ConfigMap as soon as
the job exists.
"""

from __future__ import annotations

import copy
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.client.code.archive import (
    LEFT_OUT_ANNOTATION,
    MAX_CONFIG_MAP_BYTES,
    Archive,
    largest_files,
    size_text,
)
from trainmaster.client.code.claims import upload_to_claim
from trainmaster.client.code.scripts import require_script
from trainmaster.client.code.storing import CODE_LABEL, Objects, config_map
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound
from trainmaster.client.job import TrainingJob, require_name
from trainmaster.client.jobs import JobClient
from trainmaster.client.objects import at, text
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND
from trainmaster_operator.wire.names import CODE_ARCHIVE

CODE_FOLDER = "trainmaster-code"


@dataclass(frozen=True)
class Pushed:
    """Pushed contains the job after a push, and whether the push changed the job's code."""

    job: TrainingJob
    changed: bool


def with_code(manifest: Mapping[str, Any], archive: Archive, claim: str | None = None) -> dict[str, Any]:
    """Returns a manifest with `spec.code`, and an annotation with the files that were left out.

    Raises InvalidRequest if the archive fits nowhere or lacks the script.
    """
    body: dict[str, Any] = copy.deepcopy(dict(manifest))
    name = str((body.get("metadata") or {}).get("name") or "")
    require_name(name)
    spec = body["spec"] = body.get("spec") or {}
    if not isinstance(spec, dict):
        raise InvalidRequest("spec is no mapping of fields; give workers and command there")
    if spec.get("code") is not None:
        raise InvalidRequest("spec.code is in the manifest and code is given beside it; remove one of the two")
    require_script(name, spec, archive)
    spec["code"] = {"digest": archive.digest}
    if (left_out := archive.annotation()) is not None:
        metadata = body["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), LEFT_OUT_ANNOTATION: left_out}
    if claim is None and archive.fits_config_map:
        spec["code"]["configMap"] = config_map_name(name)
        return body
    claim = claim or text(spec, "checkpoint", "volume", "claimName")
    if not claim:
        raise InvalidRequest(
            f"the code has {size_text(len(archive.data))} compressed, and a ConfigMap holds "
            f"{MAX_CONFIG_MAP_BYTES // 1000} KB: name a claim for it by --code-claim, set "
            "spec.checkpoint.volume.claimName, or ignore what isn't code: the largest are "
            f"{largest_files(archive.sizes)}"
        )
    spec["code"]["claim"] = {"claimName": claim, "path": f"{CODE_FOLDER}/{name}"}
    return body


def submit_with_code(
    jobs: JobClient, manifest: Mapping[str, Any], archive: Archive, *, claim: str | None = None
) -> TrainingJob:
    """Creates a job that runs the archive's code, stored on `claim` or in a ConfigMap. Raises ClientErrors."""
    body = with_code(manifest, archive, claim)
    name = body["metadata"]["name"]
    if "claim" in body["spec"]["code"]:
        # If a job of this name exists, the new archive would replace that job's archive.
        require_free(jobs, name)
        upload_to_claim(jobs, name, body["spec"], archive)
        return jobs.submit(body)
    create_config_map(jobs, name, archive)
    try:
        job = jobs.submit(body)
    except ClientError:
        Objects(jobs, "configmaps").delete(config_map_name(name))
        raise
    give_to_job(jobs, job)
    return job


def push_code(jobs: JobClient, name: str, archive: Archive) -> Pushed:
    """Uploads a job's new code. The ranks restart with it in their pods. Raises JobNotFound and InvalidRequest."""
    job = jobs.get(name)
    if job.finished:
        raise InvalidRequest(
            f"Job {name} has ended ({job.phase}), and ended jobs never train again: submit it again with --code."
        )
    code = at(job.raw, "spec", "code")
    if code is None:
        raise InvalidRequest(
            f"Job {name} has the code of its image: nothing can be pushed into it; submit it again with --code."
        )
    if code["digest"] == archive.digest:
        return Pushed(job, changed=False)
    require_script(name, job.raw["spec"], archive)
    if code.get("claim") is not None:
        upload_to_claim(jobs, name, job.raw["spec"], archive, beside=job)
    elif archive.fits_config_map:
        replace_archive(jobs, job, code["configMap"], archive)
    else:
        raise InvalidRequest(
            f"the code has {size_text(len(archive.data))} compressed, and job {name} keeps its code in a ConfigMap, "
            f"which holds {MAX_CONFIG_MAP_BYTES // 1000} KB: ignore what isn't code, or submit the job again with "
            f"--code-claim; the largest are {largest_files(archive.sizes)}"
        )
    annotations = {LEFT_OUT_ANNOTATION: archive.annotation()}
    patch = {"metadata": {"annotations": annotations}, "spec": {"code": {"digest": archive.digest}}}
    return Pushed(jobs.merge(name, patch), changed=True)


# Size limit of a ConfigMap's data in bytes (k8s.io/kubernetes pkg/apis/core/types.go, MaxSecretSize: 1 MiB).
MAX_DATA_BYTES = 1_000_000


def config_map_name(job: str) -> str:
    """Returns the name of the ConfigMap that contains a job's code."""
    return f"{job}-code"


def create_config_map(jobs: JobClient, job: str, archive: Archive) -> None:
    """Creates a new job's ConfigMap, or replaces that of a deleted job with this name. Raises JobExists."""
    maps, name = Objects(jobs, "configmaps"), config_map_name(job)
    body = config_map(name, job, CODE_ARCHIVE, archive.data)
    try:
        maps.create(body)
        return
    except JobExists:
        present = maps.get(name)
    if present is not None:
        if text(present, "metadata", "labels", CODE_LABEL) != job:
            raise InvalidRequest(
                f"ConfigMap {name} is there and isn't a job's code: give the job another name, or remove it"
            )
        require_free(jobs, job)
        # The garbage collector may be about to remove the previous job's ConfigMap, so that ConfigMap can't be reused.
        maps.delete(name, present["metadata"].get("uid"))
    maps.create(body)


def require_free(jobs: JobClient, job: str) -> None:
    """Raises JobExists if a job of this name exists."""
    try:
        jobs.get(job)
    except JobNotFound:
        return
    raise JobExists(f'distributedtrainingjobs.trainmaster.dev "{job}" already exists')


def give_to_job(jobs: JobClient, job: TrainingJob) -> None:
    """Makes the job the owner of the ConfigMap, so that both are deleted together."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    Objects(jobs, "configmaps").merge(config_map_name(job.name), {"metadata": {"ownerReferences": [owner]}})


def replace_archive(jobs: JobClient, job: TrainingJob, name: str, archive: Archive) -> None:
    """Stores new code. If both fit, keeps the current code too, for pods created before the job names the new code."""
    maps, body = Objects(jobs, "configmaps"), config_map(name, job.name, CODE_ARCHIVE, archive.data)
    present = maps.get(name)
    if present is None:
        maps.create(body)
        if name == config_map_name(job.name):
            give_to_job(jobs, job)
        return
    known = present.get("binaryData") or {}
    data = body["binaryData"] | dict.fromkeys((key for key in known if key != CODE_ARCHIVE), None)
    digest, before = job.raw["spec"]["code"]["digest"], known.get(CODE_ARCHIVE)
    if before is not None and len(b64decode(before)) + len(archive.data) <= MAX_DATA_BYTES:
        data[f"{digest}.tar.gz"] = before
    maps.merge(name, {"binaryData": data})
