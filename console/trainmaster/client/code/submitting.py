"""Code and job are written in an order in which no pod waits for what isn't there, and nothing is left behind."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.client.code.archive import Archive, size_text
from trainmaster.client.code.claims import upload_to_claim
from trainmaster.client.code.places import (
    MAX_CONFIG_MAP_BYTES,
    config_map_name,
    create_config_map,
    fits_config_map,
    give_to_job,
    remove_config_map,
    replace_archive,
    require_free,
)
from trainmaster.client.code.scripts import require_script
from trainmaster.client.errors import ClientError, InvalidRequest
from trainmaster.client.jobs import JobClient, TrainingJob, require_name

CODE_FOLDER = "trainmaster-code"


@dataclass(frozen=True)
class Pushed:
    """Pushed is what became of new code: the job as it is now, and whether anything has changed."""

    job: TrainingJob
    changed: bool


def with_code(manifest: Mapping[str, Any], archive: Archive, claim: str | None = None) -> dict[str, Any]:
    """Returns a job's manifest with `spec.code`.

    Raises InvalidRequest where the archive has no place to go, or lacks the script that the job runs.
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
    if claim is None and fits_config_map(archive):
        spec["code"]["configMap"] = config_map_name(name)
        return body
    claim = claim or _checkpoint_claim(spec)
    if claim is None:
        raise InvalidRequest(
            f"the code has {size_text(len(archive.data))} compressed, and a ConfigMap holds "
            f"{MAX_CONFIG_MAP_BYTES // 1000} KB: name a claim for it by --code-claim, set "
            f"spec.checkpoint.volume.claimName, or ignore what isn't code: the largest are {archive.largest()}"
        )
    spec["code"]["claim"] = {"claimName": claim, "path": f"{CODE_FOLDER}/{name}"}
    return body


def submit_with_code(
    jobs: JobClient, manifest: Mapping[str, Any], archive: Archive, *, claim: str | None = None
) -> TrainingJob:
    """Creates a job that runs the archive's code; `claim` is a volume for it, in place of a ConfigMap.

    Raises JobExists, InvalidRequest, NotAllowed.
    """
    body = with_code(manifest, archive, claim)
    name = body["metadata"]["name"]
    if "claim" in body["spec"]["code"]:
        # Its archives would make way for this one.
        require_free(jobs, name)
        upload_to_claim(jobs, name, body["spec"], archive)
        return jobs.submit(body)
    create_config_map(jobs, name, archive)
    try:
        job = jobs.submit(body)
    except ClientError:
        remove_config_map(jobs, name)
        raise
    give_to_job(jobs, job)
    return job


def push_code(jobs: JobClient, name: str, archive: Archive) -> Pushed:
    """Brings new code into a job; its ranks save a checkpoint and start again with it, in the same pods.

    Raises JobNotFound, and InvalidRequest for a job that has ended, was submitted without code, or runs a script that
    the archive lacks.
    """
    job = jobs.get(name)
    if job.finished:
        raise InvalidRequest(
            f"Job {name} has ended ({job.phase}), and ended jobs never train again: submit it anew with --code."
        )
    code = (job.raw.get("spec") or {}).get("code")
    if code is None:
        raise InvalidRequest(
            f"Job {name} has the code of its image: nothing can be pushed into it; submit it anew with --code."
        )
    if code["digest"] == archive.digest:
        return Pushed(job, changed=False)
    require_script(name, job.raw["spec"], archive)
    if code.get("claim") is not None:
        upload_to_claim(jobs, name, job.raw["spec"], archive, beside=job)
    elif fits_config_map(archive):
        replace_archive(jobs, job, code["configMap"], archive)
    else:
        raise InvalidRequest(
            f"the code has {size_text(len(archive.data))} compressed, and job {name} keeps its code in a ConfigMap, "
            f"which holds {MAX_CONFIG_MAP_BYTES // 1000} KB: ignore what isn't code, or submit the job anew with "
            f"--code-claim; the largest are {archive.largest()}"
        )
    return Pushed(jobs.merge(name, {"spec": {"code": {"digest": archive.digest}}}), changed=True)


def _checkpoint_claim(spec: Mapping[str, Any]) -> str | None:
    volume = (spec.get("checkpoint") or {}).get("volume") or {}
    claim = volume.get("claimName")
    return claim if isinstance(claim, str) else None
