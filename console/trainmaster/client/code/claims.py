"""Copies an archive that is too large for a ConfigMap onto a volume, using a short-lived pod.

The pod uses the job's image. It mounts the claim and the archive's pieces, joins the pieces and compares the digest.
The pieces are ConfigMaps that the pod owns, so they are removed together with the pod. This program removes the pod
even after Ctrl-C. If the program is killed, the pod ends at its deadline and the next upload removes it. The job's
current archive is kept, because replacement pods need it until the job names the new archive.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainmaster.client.code.archive import MAX_CONFIG_MAP_BYTES, Archive
from trainmaster.client.code.storing import CODE_LABEL, Objects, config_map
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound, NotAllowed
from trainmaster.client.job import TrainingJob
from trainmaster.client.jobs import JobClient
from trainmaster.client.objects import at, items, text
from trainmaster_operator.api.v1alpha1 import DEFAULT_IMAGE
from trainmaster_operator.api.v1alpha1.names import BUNDLED_USER
from trainmaster_operator.wire.names import JOB_UID_LABEL
from trainmaster_operator.wire.values import mapping

UPLOAD_SECONDS = 300
POLL_SECONDS = 0.2
KEPT_ARCHIVES = 2
# The value of this annotation identifies which run of this program created the pod.
UPLOAD_ANNOTATION = "trainmaster.dev/upload"
# Fields of the job's podTemplate that the pod needs to start on the workers' nodes.
_TAKEN_FROM_POD = ("imagePullSecrets", "tolerations", "nodeSelector", "securityContext", "priorityClassName")
NO_NODE = "it has no node"
_WAITING = dict.fromkeys(("ErrImagePull", "ImagePullBackOff"), "its image can't be pulled") | {
    "InvalidImageName": "its image has no valid name",
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError"), "its container can't be made"),
}

# `python3 -c` runs this program. Its arguments are the folder, the digest, the number of pieces, the number of archives
# to keep, the digest that the job names (or nothing), and the job. The folder may contain other users' files, so each
# job has a list there. The list names the job's archives, newest last, and records which of them the job created. The
# program removes only archives that the job created and that no other job's list names.
_PROGRAM = """
import hashlib, json, os, sys
folder, digest, pieces, kept, named, job = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]
path = os.path.join(folder, digest + ".tar.gz")
new = os.path.join(folder, ".code-of-" + job + ".new")
listed = os.path.join(folder, ".code-of-" + job + ".json")
def read(name):
    try:
        with open(name) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
def write(data, name):
    with open(new, "wb") as file:
        file.writelines(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, name)
try:
    os.makedirs(folder, exist_ok=True)
    found = hashlib.sha256()
    def content():
        for piece in range(pieces):
            with open("/run/pieces/piece-%d" % piece, "rb") as source:
                data = source.read()
            found.update(data)
            yield data
        if found.hexdigest() != digest:
            sys.exit("the pieces have the digest " + found.hexdigest())
    brought = read(listed)
    made = brought.pop(digest, not os.path.exists(path))
    try:
        write(content(), path)
        brought[digest] = made
        needed = set(sorted(brought, key=lambda each: (each == digest, each == named))[-kept:])
        for name in os.listdir(folder):
            name = os.path.join(folder, name)
            if os.path.basename(name).startswith(".code-of-") and name.endswith(".json") and name != listed:
                needed.update(read(name))
        for old in [each for each in brought if each not in needed]:
            if brought.pop(old) and os.path.exists(os.path.join(folder, old + ".tar.gz")):
                os.remove(os.path.join(folder, old + ".tar.gz"))
        write([json.dumps(brought).encode()], listed)
    finally:
        if os.path.exists(new):
            os.remove(new)
except OSError as error:
    sys.exit("%s: %s" % (error.filename or folder, error.strerror))
except (ValueError, AttributeError):
    sys.exit("%s: a list of archives is damaged; remove the file .code-of-*.json that is no JSON" % folder)
"""


def upload_to_claim(
    jobs: JobClient, name: str, spec: Mapping[str, Any], archive: Archive, *, beside: TrainingJob | None = None
) -> None:
    """Puts the archive onto the claim of `spec.code`. `beside` is the job if it exists and its pods mount the claim."""
    starts = range(0, len(archive.data), MAX_CONFIG_MAP_BYTES)
    pieces = [archive.data[start : start + MAX_CONFIG_MAP_BYTES] for start in starts]
    claim = spec["code"]["claim"]["claimName"]
    if Objects(jobs, "persistentvolumeclaims").get(claim) is None:
        raise InvalidRequest(
            f"there is no PersistentVolumeClaim {claim} in {jobs.namespace} to bring the code to; create it, or name "
            "another by --code-claim"
        )
    pods, maps, pod = Objects(jobs, "pods"), Objects(jobs, "configmaps"), f"{name}-code-upload"
    try:
        uid = _make_pod(pods, _pod(pod, name, spec, archive.digest, len(pieces), beside))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        try:
            for number, piece in enumerate(pieces):
                _replace(maps, config_map(f"{pod}-{number}", name, "piece", piece, [owner]))
            _wait(pods, pod, uid)
        finally:
            # The pod is deleted first, because its pieces are then removed even if this program is interrupted.
            _delete(pods, pod, uid)
            for number in range(len(pieces)):
                _delete(maps, f"{pod}-{number}")
    except NotAllowed as error:
        raise NotAllowed(
            f"a pod has to bring the code to claim {claim}, and the cluster refuses it or its pieces: {error}; code of "
            f"up to {MAX_CONFIG_MAP_BYTES // 1000} KB (compressed) needs no pod: ignore what isn't code"
        ) from error


def _make_pod(pods: Objects, body: dict[str, Any]) -> str:
    """Creates a pod and returns its uid. If the creation's outcome is unknown, deletes the pod if it exists."""
    pod, token = body["metadata"]["name"], secrets.token_hex(8)
    body["metadata"]["annotations"] = {UPLOAD_ANNOTATION: token}
    try:
        try:
            made = pods.create(body)
        except JobExists:
            _remove_ended(pods, pod)
            made = pods.create(body)
    except (InvalidRequest, NotAllowed, JobExists, JobNotFound):
        raise
    except BaseException:
        # After Ctrl-C or a broken connection, the pod may exist nevertheless. If the cluster is unreachable, the next
        # upload removes the pod.
        with suppress(ClientError):
            present = pods.get(pod)
            if present is not None and text(present, "metadata", "annotations", UPLOAD_ANNOTATION) == token:
                _delete(pods, pod, present["metadata"]["uid"])
        raise
    return str(made["metadata"]["uid"])


def _remove_ended(pods: Objects, pod: str) -> None:
    """Removes the pod of a killed upload. Raises InvalidRequest if the pod may still be working."""
    present = pods.get(pod)
    if present is None:
        return
    if text(present, "status", "phase") not in ("Succeeded", "Failed"):
        raise InvalidRequest(
            f"pod {pod} is there: code is being brought to the job by somebody else; wait for it, or delete "
            f"the pod where nobody does that any more (kubectl delete pod {pod})"
        )
    _delete(pods, pod, present["metadata"]["uid"])


def _pod(
    pod: str, job: str, spec: Mapping[str, Any], digest: str, pieces: int, beside: TrainingJob | None
) -> dict[str, Any]:
    claim = spec["code"]["claim"]
    template = mapping(at(spec, "podTemplate", "spec"))
    taken = {field: template[field] for field in _TAKEN_FROM_POD if template.get(field) is not None}
    if "securityContext" not in taken:
        taken["securityContext"] = {"fsGroup": BUNDLED_USER, "seccompProfile": {"type": "RuntimeDefault"}}
    if beside is not None:
        # Some volumes can be mounted by only one node at a time, so the pod prefers the node of the job's pods.
        labels = {"matchLabels": {JOB_UID_LABEL: beside.uid}}
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}
        preferred = [{"weight": 100, "podAffinityTerm": term}]
        taken["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    sources = [
        {"configMap": {"name": f"{pod}-{number}", "items": [{"key": "piece", "path": f"piece-{number}"}]}}
        for number in range(pieces)
    ]
    named = "" if beside is None else text(beside.raw, "spec", "code", "digest")
    arguments = [f"/run/claim/{claim['path']}", digest, str(pieces), str(KEPT_ARCHIVES), named, job]
    limits = {"cpu": "500m", "memory": "256Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "labels": {CODE_LABEL: job}},
        "spec": {
            **taken,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": UPLOAD_SECONDS,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "upload",
                    "image": str(spec.get("image") or DEFAULT_IMAGE),
                    **({"imagePullPolicy": spec["imagePullPolicy"]} if spec.get("imagePullPolicy") else {}),
                    "command": ["python3", "-c", _PROGRAM, *arguments],
                    "resources": {"requests": limits, "limits": limits},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "claim", "mountPath": "/run/claim"},
                        {"name": "pieces", "mountPath": "/run/pieces", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "claim", "persistentVolumeClaim": {"claimName": claim["claimName"]}},
                {"name": "pieces", "projected": {"sources": sources}},
            ],
        },
    }


def _replace(maps: Objects, body: Mapping[str, Any]) -> None:
    """Creates a piece. If an earlier upload has left a piece of this name, replaces that piece."""
    try:
        maps.create(body)
    except JobExists:
        _delete(maps, body["metadata"]["name"])
        maps.create(body)


def _wait(pods: Objects, pod: str, uid: str) -> None:
    """Waits until the pod has succeeded. If the pod fails or takes too long, raises InvalidRequest with the reason."""
    until = time.monotonic() + UPLOAD_SECONDS
    which = f"pod {pod}, which brings the code to its volume,"
    while True:
        present = pods.get(pod)
        if present is None:
            raise InvalidRequest(f"{which} was deleted; try again")
        status = mapping(present.get("status"))
        phase = status.get("phase")
        if phase == "Succeeded":
            return
        problem, how = _problem(status), ""
        if phase == "Failed" or (problem and not problem.startswith(NO_NODE)):
            how = "has failed"
        elif time.monotonic() >= until:
            how = f"wasn't done within {UPLOAD_SECONDS} s"
        if how:
            why = problem or _warning(pods.jobs, uid) or f"it is {phase}"
            raise InvalidRequest(f"{which} {how}: {why}; the code is as it was: mend that, and try again")
        time.sleep(POLL_SECONDS)


def _warning(jobs: JobClient, uid: str) -> str:
    """Returns the newest warning Event about a pod, such as a failed mount, which the pod's status doesn't show."""
    try:
        events = jobs.events()
    except ClientError:
        return ""
    own = [each for each in events if each.get("type") == "Warning" and text(each, "involvedObject", "uid") == uid]
    newest = max(own, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), default={})
    return " ".join(str(newest.get("message") or newest.get("reason") or "").split())


def _problem(status: Mapping[str, Any]) -> str:
    for container in items(status, "containerStatuses"):
        waiting, ended = (mapping(at(container, "state", name)) for name in ("waiting", "terminated"))
        if waiting.get("reason") in _WAITING:
            return f"{_WAITING[waiting['reason']]} ({waiting.get('message') or waiting['reason']})"
        if ended.get("exitCode"):
            # The last line of a traceback names the error.
            lines = str(ended.get("message") or ended.get("reason") or "").strip().splitlines()
            return f"exit code {ended['exitCode']}: {lines[-1] if lines else 'it said nothing'}"
    for condition in items(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{NO_NODE}: {condition.get('message') or condition.get('reason')}"
    return str(status.get("message") or "")


def _delete(objects: Objects, name: str, uid: str | None = None) -> None:
    """Tries to delete an object. If this fails, the next upload deletes the object.

    With `uid`, the object is deleted at once, and only if it has this uid.
    """
    with suppress(ClientError):
        objects.delete(name, uid, gracePeriodSeconds=0)
