"""An archive that no ConfigMap holds comes onto a volume by a pod that lives for a moment, on any cluster.

The pod has the job's image, mounts the claim and the archive in pieces, puts them together, and compares the digest.
The pieces are ConfigMaps that the pod owns: whatever becomes of this program, they go with the pod, which has a
deadline. The archive before this one stays: pods that come back need it until the job names the new one.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from trainmaster.api.v1alpha1 import DEFAULT_IMAGE
from trainmaster.client.code.archive import Archive
from trainmaster.client.code.places import CODE_LABEL, MAX_CONFIG_MAP_BYTES
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound, WaitTimeout
from trainmaster.client.jobs import FIELD_MANAGER, JobClient, TrainingJob
from trainmaster.wire.names import JOB_UID_LABEL

UPLOAD_SECONDS = 300
POLL_SECONDS = 0.2
KEPT_ARCHIVES = 2
# gid of the bundled image's user: the volume must be writable for it (images/trainer/Dockerfile).
BUNDLED_GROUP = 65532
# Of the job's podTemplate what lets a pod come up where its workers do.
_TAKEN_FROM_POD = ("imagePullSecrets", "tolerations", "nodeSelector", "securityContext", "priorityClassName")
_WAITING = {
    "ErrImagePull": "its image can't be pulled",
    "ImagePullBackOff": "its image can't be pulled",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container can't be made",
    "CreateContainerError": "its container can't be made",
}

# $0.. of `python3 -c`: the folder, the digest, the number of pieces, the archives to keep.
_PROGRAM = """
import hashlib, os, sys
folder, digest, pieces, kept = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, digest + ".tar.gz")
found = hashlib.sha256()
with open(path + ".new", "wb") as file:
    for piece in range(pieces):
        with open("/run/pieces/piece-%d" % piece, "rb") as source:
            data = source.read()
        found.update(data)
        file.write(data)
    file.flush()
    os.fsync(file.fileno())
if found.hexdigest() != digest:
    os.remove(path + ".new")
    sys.exit("the pieces have the digest " + found.hexdigest())
os.replace(path + ".new", path)
os.utime(path)
archives = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".tar.gz")]
for old in sorted(archives, key=os.path.getmtime, reverse=True)[kept:]:
    os.remove(old)
"""


def upload_to_claim(
    jobs: JobClient, name: str, spec: Mapping[str, Any], archive: Archive, *, beside: TrainingJob | None = None
) -> None:
    """Puts the archive onto the claim that `spec.code` names; `beside`: the job whose pods mount it already.

    Raises InvalidRequest and WaitTimeout with what stood in the way.
    """
    pieces = [
        archive.data[start : start + MAX_CONFIG_MAP_BYTES]
        for start in range(0, len(archive.data), MAX_CONFIG_MAP_BYTES)
    ]
    claim = spec["code"]["claim"]
    try:
        jobs.transport.request(
            "GET", f"/api/v1/namespaces/{jobs.namespace}/persistentvolumeclaims/{claim['claimName']}"
        )
    except JobNotFound as error:
        raise InvalidRequest(
            f"there is no PersistentVolumeClaim {claim['claimName']} in {jobs.namespace} to bring the code to; create "
            "it, or name another by --code-claim"
        ) from error
    pod = f"{name}-code-upload"
    pods = f"/api/v1/namespaces/{jobs.namespace}/pods"
    body = _pod(pod, name, spec, archive.digest, len(pieces), beside)
    try:
        made = jobs.transport.request("POST", pods, query={"fieldManager": FIELD_MANAGER}, body=body)
    except JobExists as error:
        raise InvalidRequest(
            f"pod {pod} is there: code is being brought to job {name} by somebody else; wait for it, or delete the pod"
        ) from error
    try:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made["metadata"]["uid"]}
        for number, piece in enumerate(pieces):
            config_map = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": _piece(pod, number), "labels": {CODE_LABEL: name}, "ownerReferences": [owner]},
                "binaryData": {"piece": b64encode(piece).decode()},
            }
            _replace(jobs, config_map)
        _wait(jobs, f"{pods}/{pod}", pod)
    finally:
        for number in range(len(pieces)):
            _delete(jobs, f"/api/v1/namespaces/{jobs.namespace}/configmaps/{_piece(pod, number)}")
        _delete(jobs, f"{pods}/{pod}", now=True)


def _pod(
    pod: str, job: str, spec: Mapping[str, Any], digest: str, pieces: int, beside: TrainingJob | None
) -> dict[str, Any]:
    claim = spec["code"]["claim"]
    image = str(spec.get("image") or DEFAULT_IMAGE)
    template = (spec.get("podTemplate") or {}).get("spec") or {}
    taken = {field: template[field] for field in _TAKEN_FROM_POD if template.get(field) is not None}
    if "securityContext" not in taken:
        taken["securityContext"] = {"fsGroup": BUNDLED_GROUP, "seccompProfile": {"type": "RuntimeDefault"}}
    if beside is not None:
        # A volume that one node mounts at a time is where its pods are.
        taken["affinity"] = {
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {JOB_UID_LABEL: beside.uid}},
                        },
                    }
                ]
            }
        }
    sources = [
        {"configMap": {"name": _piece(pod, number), "items": [{"key": "piece", "path": f"piece-{number}"}]}}
        for number in range(pieces)
    ]
    arguments = [f"/run/claim/{claim['path']}", digest, str(pieces), str(KEPT_ARCHIVES)]
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
                    "image": image,
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


def _piece(pod: str, number: int) -> str:
    return f"{pod}-{number}"


def _replace(jobs: JobClient, body: Mapping[str, Any]) -> None:
    """Creates a piece; one that another upload has left behind makes way."""
    path = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
    try:
        jobs.transport.request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=body)
    except JobExists:
        _delete(jobs, f"{path}/{body['metadata']['name']}")
        jobs.transport.request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=body)


def _wait(jobs: JobClient, path: str, pod: str) -> None:
    """Waits for the pod to succeed. Raises InvalidRequest with why it can't, WaitTimeout where it doesn't."""
    until = time.monotonic() + UPLOAD_SECONDS
    while True:
        try:
            status = jobs.transport.request("GET", path).get("status") or {}
        except JobNotFound as error:
            raise InvalidRequest(f"pod {pod}, which brings the code to its volume, was deleted; try again") from error
        phase = status.get("phase")
        if phase == "Succeeded":
            return
        problem = _problem(status)
        if phase == "Failed" or (problem and not problem.startswith("it has no node")):
            raise InvalidRequest(
                f"pod {pod}, which brings the code to its volume, has failed: {problem or 'no reason'}"
            )
        if time.monotonic() >= until:
            why = problem or f"it is {phase}; kubectl describe pod {pod} shows why"
            raise WaitTimeout(
                f"pod {pod}, which brings the code to its volume, wasn't done within {UPLOAD_SECONDS} s: {why}",
                str(phase),
            )
        time.sleep(POLL_SECONDS)


def _problem(status: Mapping[str, Any]) -> str:
    """Returns what a pod's status says is wrong; empty: nothing."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in _WAITING:
            return f"{_WAITING[waiting['reason']]} ({waiting.get('message') or waiting['reason']})"
        if ended.get("exitCode"):
            return f"exit code {ended['exitCode']}: {(ended.get('message') or ended.get('reason') or '').strip()}"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"it has no node: {condition.get('message') or condition.get('reason')}"
    return str(status.get("message") or "")


def _delete(jobs: JobClient, path: str, *, now: bool = False) -> None:
    try:
        jobs.transport.request("DELETE", path, query={"gracePeriodSeconds": "0"} if now else None)
    except ClientError:
        # The pod's end takes its pieces with it, and its deadline ends the pod.
        return
