"""Copies an archive that is too large for a ConfigMap onto a volume, with a short-lived pod.

The pod uses the job's image. It mounts the claim and the archive's pieces, joins the pieces and compares the digest.
The pieces are ConfigMaps that the pod owns, so they are removed together with it. This program removes the pod even
after Ctrl-C. If the program is killed, the pod ends at its deadline and the next upload removes it. The job's current
archive is kept, because replacement pods need it until the job names the new archive.
"""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainmaster.client.async_jobs import FIELD_MANAGER
from trainmaster.client.code.archive import CODE_LABEL, MAX_CONFIG_MAP_BYTES, Archive
from trainmaster.client.errors import ClientError, InvalidRequest, JobExists, JobNotFound, NotAllowed
from trainmaster.client.job import TrainingJob
from trainmaster.client.jobs import JobClient
from trainmaster_operator.api.v1alpha1 import DEFAULT_IMAGE
from trainmaster_operator.api.v1alpha1.names import BUNDLED_USER
from trainmaster_operator.wire.names import JOB_UID_LABEL

UPLOAD_SECONDS = 300
POLL_SECONDS = 0.2
KEPT_ARCHIVES = 2
UPLOAD_ANNOTATION = "trainmaster.dev/upload"
"""The annotation that identifies the run of this program that created the pod."""
# Fields of the job's podTemplate that the pod needs to start on the workers' nodes.
_TAKEN_FROM_POD = ("imagePullSecrets", "tolerations", "nodeSelector", "securityContext", "priorityClassName")
NO_NODE = "it has no node"
_WAITING = {
    "ErrImagePull": "its image can't be pulled",
    "ImagePullBackOff": "its image can't be pulled",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container can't be made",
    "CreateContainerError": "its container can't be made",
}

# `python3 -c` runs this program with the folder, the digest, the number of pieces, the number of archives to keep, the
# digest that the job names (or nothing), and the job. The folder may contain other users' files, so a list in it names
# the job's archives, the newest last, and whether the job created each. The program removes only archives that the job
# created and that no other job's list names.
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
    """Puts the archive onto the claim that `spec.code` names. `beside` is a job whose pods already mount the claim.

    Raises InvalidRequest or NotAllowed, with the cause.
    """
    pieces = [
        archive.data[start : start + MAX_CONFIG_MAP_BYTES]
        for start in range(0, len(archive.data), MAX_CONFIG_MAP_BYTES)
    ]
    claim = spec["code"]["claim"]["claimName"]
    try:
        jobs.transport.request("GET", f"/api/v1/namespaces/{jobs.namespace}/persistentvolumeclaims/{claim}")
    except JobNotFound as error:
        raise InvalidRequest(
            f"there is no PersistentVolumeClaim {claim} in {jobs.namespace} to bring the code to; create it, or name "
            "another by --code-claim"
        ) from error
    pod = f"{name}-code-upload"
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod}"
    with _refusals_explained(claim), _made_pod(jobs, _pod(pod, name, spec, archive.digest, len(pieces), beside)) as uid:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        try:
            for number, piece in enumerate(pieces):
                config_map = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": _piece(pod, number), "labels": {CODE_LABEL: name}, "ownerReferences": [owner]},
                    "binaryData": {"piece": b64encode(piece).decode()},
                }
                _replace(jobs, config_map)
            _wait(jobs, path, pod, uid)
        finally:
            # The pod is deleted first, because its pieces are then removed even if this is interrupted.
            _delete(jobs, path, uid)
            for number in range(len(pieces)):
                _delete(jobs, f"/api/v1/namespaces/{jobs.namespace}/configmaps/{_piece(pod, number)}")


@contextmanager
def _refusals_explained(claim: str) -> Iterator[None]:
    """Adds the pod's purpose and an alternative to the message of a refusal (rights, quotas, admission)."""
    try:
        yield
    except NotAllowed as error:
        raise NotAllowed(
            f"a pod has to bring the code to claim {claim}, and the cluster refuses it or its pieces: {error}; code of "
            f"up to {MAX_CONFIG_MAP_BYTES // 1000} KB (compressed) needs no pod: ignore what isn't code"
        ) from error


@contextmanager
def _made_pod(jobs: JobClient, body: dict[str, Any]) -> Iterator[str]:
    """Creates a pod and yields its uid. Deletes the pod if it is unknown whether it was created."""
    pods = f"/api/v1/namespaces/{jobs.namespace}/pods"
    pod, token = body["metadata"]["name"], secrets.token_hex(8)
    body["metadata"]["annotations"] = {UPLOAD_ANNOTATION: token}
    try:
        try:
            made = jobs.transport.request("POST", pods, query={"fieldManager": FIELD_MANAGER}, body=body)
        except JobExists:
            _remove_ended(jobs, f"{pods}/{pod}", pod)
            made = jobs.transport.request("POST", pods, query={"fieldManager": FIELD_MANAGER}, body=body)
    except (InvalidRequest, NotAllowed, JobExists, JobNotFound):
        raise
    except BaseException:
        # After Ctrl-C or a broken connection, the pod may exist nevertheless.
        _delete_own(jobs, f"{pods}/{pod}", token)
        raise
    yield made["metadata"]["uid"]


def _remove_ended(jobs: JobClient, path: str, pod: str) -> None:
    """Removes the pod of a killed upload. Raises InvalidRequest if the pod may still be working."""
    try:
        present = jobs.transport.request("GET", path)
    except JobNotFound:
        return
    if (present.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
        raise InvalidRequest(
            f"pod {pod} is there: code is being brought to the job by somebody else; wait for it, or delete "
            f"the pod where nobody does that any more (kubectl delete pod {pod})"
        )
    _delete(jobs, path, present["metadata"]["uid"])


def _delete_own(jobs: JobClient, path: str, token: str) -> None:
    try:
        present = jobs.transport.request("GET", path)
    except ClientError:
        # Either the pod wasn't created, or the cluster is unreachable. Then the next upload removes the pod.
        return
    if (present["metadata"].get("annotations") or {}).get(UPLOAD_ANNOTATION) == token:
        _delete(jobs, path, present["metadata"]["uid"])


def _pod(
    pod: str, job: str, spec: Mapping[str, Any], digest: str, pieces: int, beside: TrainingJob | None
) -> dict[str, Any]:
    claim = spec["code"]["claim"]
    image = str(spec.get("image") or DEFAULT_IMAGE)
    template = (spec.get("podTemplate") or {}).get("spec") or {}
    taken = {field: template[field] for field in _TAKEN_FROM_POD if template.get(field) is not None}
    if "securityContext" not in taken:
        taken["securityContext"] = {"fsGroup": BUNDLED_USER, "seccompProfile": {"type": "RuntimeDefault"}}
    if beside is not None:
        # Some volumes can be mounted by only one node at a time, so the pod prefers the node of the job's pods.
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
    named = "" if beside is None else str(((beside.raw.get("spec") or {}).get("code") or {}).get("digest") or "")
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
    """Creates a piece. Replaces a piece that another upload has left."""
    path = f"/api/v1/namespaces/{jobs.namespace}/configmaps"
    try:
        jobs.transport.request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=body)
    except JobExists:
        _delete(jobs, f"{path}/{body['metadata']['name']}")
        jobs.transport.request("POST", path, query={"fieldManager": FIELD_MANAGER}, body=body)


def _wait(jobs: JobClient, path: str, pod: str, uid: str) -> None:
    """Waits until the pod has succeeded. If it fails, raises InvalidRequest with the reason."""
    until = time.monotonic() + UPLOAD_SECONDS
    which = f"pod {pod}, which brings the code to its volume,"
    while True:
        try:
            status = jobs.transport.request("GET", path).get("status") or {}
        except JobNotFound as error:
            raise InvalidRequest(f"{which} was deleted; try again") from error
        phase = status.get("phase")
        if phase == "Succeeded":
            return
        problem = _problem(status)
        if phase == "Failed" or (problem and not problem.startswith(NO_NODE)):
            raise InvalidRequest(
                f"{which} has failed: {problem or _warning(jobs, uid) or 'no reason'}; the code is as it was: mend "
                "that, and try again"
            )
        if time.monotonic() >= until:
            why = problem or _warning(jobs, uid) or f"it is {phase}"
            raise InvalidRequest(
                f"{which} wasn't done within {UPLOAD_SECONDS} s: {why}; the code is as it was: mend that, and try again"
            )
        time.sleep(POLL_SECONDS)


def _warning(jobs: JobClient, uid: str) -> str:
    """Returns the newest warning Event about a pod, or an empty text if there is none or Events can't be read.

    If a volume can't be mounted, only Events show it, and the pod is removed before anybody could describe it.
    """
    try:
        events = jobs.events()
    except ClientError:
        return ""
    own = [each for each in events if each.get("type") == "Warning" and each["involvedObject"].get("uid") == uid]
    newest = max(own, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""), default={})
    return " ".join(str(newest.get("message") or newest.get("reason") or "").split())


def _problem(status: Mapping[str, Any]) -> str:
    """Returns the problem in a pod's status, or an empty text."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in _WAITING:
            return f"{_WAITING[waiting['reason']]} ({waiting.get('message') or waiting['reason']})"
        if ended.get("exitCode"):
            # The last line of a traceback names the error.
            lines = str(ended.get("message") or ended.get("reason") or "").strip().splitlines()
            return f"exit code {ended['exitCode']}: {lines[-1] if lines else 'it said nothing'}"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{NO_NODE}: {condition.get('message') or condition.get('reason')}"
    return str(status.get("message") or "")


def _delete(jobs: JobClient, path: str, pod_uid: str | None = None) -> None:
    """Deletes an object. A pod is deleted at once, and only if it has this uid."""
    body = None if pod_uid is None else {"gracePeriodSeconds": 0, "preconditions": {"uid": pod_uid}}
    try:
        jobs.transport.request("DELETE", path, body=body)
    except ClientError:
        # The object is already gone, or the next upload removes it.
        return
