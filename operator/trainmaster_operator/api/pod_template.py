"""Checks that Kubernetes accepts a podTemplate (`pod_schema`) and that it keeps the fields that attempts rely on.

The API server checks only the most common types in podTemplate, so the operator and the command line check the rest.
Paths are compared as the kernel resolves them, so `/run//trainmaster/` and `/run/./trainmaster` equal
`/run/trainmaster`. CEL can't resolve `..` within a path, so `matching` leaves such paths to `is_below`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from trainmaster_operator.api.kubernetes_syntax import check_annotations, check_labels
from trainmaster_operator.api.limits import MAX_POD_PROBLEMS
from trainmaster_operator.api.merge import DIRECTIVE, MergeError, merge
from trainmaster_operator.api.pod_schema import (
    AGENT_CONTAINER,
    WORKER_CONTAINER,
    check_fields,
    check_relations,
    requests_and_limits,
)
from trainmaster_operator.api.pod_schema.relations import mapping_items
from trainmaster_operator.api.pod_schema.resources import device_names
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.v1alpha1 import JobSpec, PodTemplate
from trainmaster_operator.api.values import show
from trainmaster_operator.wire.values import mapping

RESERVED_PREFIX = "trainmaster-"
RESERVED_VARIABLES = frozenset(
    [
        *("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
        *("LOCAL_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE"),
    ]
)
RESERVED_VARIABLE_PREFIXES = ("PET_", "TRAINMASTER_")
# Variables that the agent sets in each attempt. The container has none of them, or the value for the first attempt.
_OF_AN_ATTEMPT = re.compile(
    r"(PET_)?(MASTER_ADDR|MASTER_PORT|NNODES|NODE_RANK)|(LOCAL_)?(RANK|WORLD_SIZE)|TORCHELASTIC_ERROR_FILE|"
    "TRAINMASTER_ATTEMPT"
)
# A reference to a variable. $$ is an escaped $ (k8s.io/kubernetes/third_party/forked/golang/expansion).
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
RESERVED_LABELS = frozenset(
    {
        *("app.kubernetes.io/managed-by", "apps.kubernetes.io/pod-index", "controller-revision-hash"),
        "statefulset.kubernetes.io/pod-name",
    }
)
RESERVED_DOMAIN = "trainmaster.dev/"

# Refused fields of the PodSpec, with the remedy for each.
REFUSED_POD_FIELDS = {
    "restartPolicy": "pods of a StatefulSet always have Always; remove it",
    "hostname": "the workers find each other by the StatefulSet's names; remove it",
    "subdomain": "the workers find each other by the StatefulSet's names; remove it",
    "hostNetwork": "set spec.interconnect.hostNetwork",
    "setHostnameAsFQDN": "the workers find each other by the StatefulSet's names; remove it",
    "ephemeralContainers": "only kubectl debug adds these; remove it",
    "activeDeadlineSeconds": "set spec.runPolicy.activeDeadlineSeconds",
    "priorityClassName": "set spec.scheduling.priorityClassName",
}
# Refused fields of the worker's container, with the remedy for each.
REFUSED_WORKER_FIELDS = {
    "image": "set spec.image",
    "imagePullPolicy": "set spec.imagePullPolicy",
    "command": "the agent is the container's command; set spec.command",
    "args": "set spec.command and spec.args",
    "terminationMessagePath": "the agent reports there; remove it",
    "terminationMessagePolicy": "the agent reports there; remove it",
}


def attempt_variable(text: str) -> str | None:
    """Returns the first variable of an attempt that a text refers to as $(NAME), or None."""
    names = (found[1] or "" for found in REFERENCE.finditer(text))
    return next((name for name in names if _OF_AN_ATTEMPT.fullmatch(name)), None)


def filled_in_early(text: str, name: str, remedy: str) -> str:
    """Returns the message for a text that refers to an attempt's variable as $(NAME)."""
    return (
        f"{show(text)} isn't the attempt's value, because Kubernetes replaces $({name}) once, when the container "
        f"starts; {remedy}"
    )


def check_pod_template(spec: JobSpec) -> Iterator[Problem]:
    """Yields the first problem with each field of a spec's podTemplate, up to MAX_POD_PROBLEMS problems."""
    fields: list[str] = []
    found = _check(spec.pod_template, spec) if spec.pod_template is not None else ()
    for problem in islice(found, MAX_POD_PROBLEMS):
        if not any(f"{problem.field}.".startswith((f"{field}.", f"{field}[")) for field in fields):
            fields.append(problem.field)
            yield problem


def _check(template: PodTemplate, spec: JobSpec) -> Iterator[Problem]:
    path = "spec.podTemplate"
    if template.metadata is not None:
        for field in ("labels", "annotations"):
            for name in getattr(template.metadata, field) or {}:
                if name in RESERVED_LABELS or name.startswith(RESERVED_DOMAIN):
                    yield Problem(f"{path}.metadata.{field}", name, f"{show(name)} is set by the system; remove it")
        yield from check_labels(f"{path}.metadata.labels", template.metadata.labels)
        yield from check_annotations(f"{path}.metadata.annotations", template.metadata.annotations)
    if template.spec is not None:
        pod = template.spec.value()
        worker = [requests_and_limits(group.resources) for group in spec.groups]
        problems = [
            *_check_pod(f"{path}.spec", pod, device_names(spec)),
            *islice(check_fields(pod), MAX_POD_PROBLEMS),
            *islice(check_relations(pod, worker), MAX_POD_PROBLEMS),
        ]
        try:
            merge({}, pod, f"{path}.spec")
        except MergeError as error:
            problems = problems or [Problem(error.path, None, error.message)]
        yield from problems


def _check_pod(path: str, pod: Mapping[str, Any], devices: frozenset[str]) -> Iterator[Problem]:
    yield from _dropping(path, pod, "what the operator renders")
    yield from _refused(path, pod, REFUSED_POD_FIELDS)
    grace = pod.get("terminationGracePeriodSeconds")
    if "terminationGracePeriodSeconds" in pod and (type(grace) is not int or not 1 <= grace <= 86_400):
        wrong = f"{show(grace)} is not a whole number of seconds from 1 to 86400; ranks save a checkpoint in that time"
        yield Problem(f"{path}.terminationGracePeriodSeconds", grace, wrong)
    for field in ("containers", "initContainers", "volumes"):
        yield from _check_list(f"{path}.{field}", pod.get(field, []))
    if "containers" in pod and pod["containers"] is None:
        yield Problem(f"{path}.containers", None, "null would delete the worker; remove it")
    for position, container in mapping_items(pod.get("containers")):
        if container.get("name") == WORKER_CONTAINER:
            yield from _check_worker(f"{path}.containers[{position}]", container, devices)
    for position, container in mapping_items(pod.get("initContainers")):
        if container.get("name") == AGENT_CONTAINER:
            message = "pods mount the agent, so no container installs it; remove it"
            yield Problem(f"{path}.initContainers[{position}]", AGENT_CONTAINER, message)
    for position, volume in mapping_items(pod.get("volumes")):
        name = volume.get("name")
        if isinstance(name, str) and name.startswith(RESERVED_PREFIX):
            message = f"{show(name)} is reserved for Trainmaster; use another name"
            yield Problem(f"{path}.volumes[{position}].name", name, message)


def _check_worker(path: str, worker: Mapping[str, Any], devices: frozenset[str]) -> Iterator[Problem]:
    yield from _dropping(path, worker, "the worker")
    yield from _refused(path, worker, REFUSED_WORKER_FIELDS)
    for field in ("env", "ports", "volumeMounts"):
        if field in worker and worker[field] is None:
            yield Problem(f"{path}.{field}", None, "null would delete what the agent needs; remove it")
        yield from _check_list(f"{path}.{field}", worker.get(field))
    for position, variable in mapping_items(worker.get("env")):
        name = variable.get("name")
        if isinstance(name, str) and (name in RESERVED_VARIABLES or name.startswith(RESERVED_VARIABLE_PREFIXES)):
            yield Problem(f"{path}.env[{position}].name", name, f"{name} is set by Trainmaster; remove it")
        value = variable.get("value")
        if isinstance(value, str) and (early := attempt_variable(value)) is not None:
            message = filled_in_early(value, early, f"read {early} in the program")
            yield Problem(f"{path}.env[{position}].value", value, message)
    for position, mount in mapping_items(worker.get("volumeMounts")):
        mount_path = str(mount.get("mountPath", ""))
        if is_below(mount_path, RESERVED_PATHS):
            message = f"{show(mount_path)} is reserved for Trainmaster; mount it elsewhere"
            yield Problem(f"{path}.volumeMounts[{position}].mountPath", mount_path, message)
    probe = worker.get("livenessProbe")
    if isinstance(probe, Mapping) and DIRECTIVE not in probe and probe.get("httpGet", probe) is not None:
        for handler in ("exec", "tcpSocket", "grpc"):
            if probe.get(handler) is not None:
                message = "the agent's own probe has httpGet, and a probe has one handler; add httpGet: null"
                yield Problem(f"{path}.livenessProbe.{handler}", probe[handler], message)
    for kind in ("requests", "limits"):
        for name in set(mapping(worker.get("resources")).get(kind) or {}) & devices:
            message = f"{name} decides the number of ranks; set spec.resources.gpus"
            yield Problem(f"{path}.resources.{kind}", name, message)


def _dropping(path: str, value: Mapping[str, Any], what: str) -> Iterator[Problem]:
    if DIRECTIVE in value:
        directive = value[DIRECTIVE]
        message = f"{show(directive)} would remove {what}; give only the fields to change"
        yield Problem(f"{path}.{DIRECTIVE}", directive, message)


def _refused(path: str, value: Mapping[str, Any], fields: Mapping[str, str]) -> Iterator[Problem]:
    for field, remedy in fields.items():
        if field in value and not (field == "restartPolicy" and value[field] == "Always"):
            given = value[field]
            shown = "" if isinstance(given, list | dict) else f"{show(given)} "
            yield Problem(f"{path}.{field}", given, f"{shown}can't be set here; {remedy}")


def _check_list(path: str, value: Any) -> Iterator[Problem]:
    """Checks that a list doesn't replace the rendered list."""
    for position, item in mapping_items(value):
        if dict(item) == {DIRECTIVE: "replace"}:
            message = "would remove what the operator renders; give only the items to add or change"
            yield Problem(f"{path}[{position}]", "replace", message)


RESERVED_PATHS = ("/run/trainmaster", "/etc/trainmaster", "/opt/trainmaster")
# Paths of the container runtime.
SYSTEM_PATHS = ("/dev", "/proc", "/sys")
# A volume at one of these paths would hide the image's programs and settings. Volumes below them are allowed.
IMAGE_PATHS = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")


def hides_the_image(path: str) -> bool:
    """Returns whether a volume at an absolute path would hide files that the image needs to run programs."""
    return _resolved(path) in ("/", *IMAGE_PATHS)


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Returns whether an absolute path is one of the folders or inside one."""
    resolved = _resolved(path)
    return any(resolved == folder or resolved.startswith(f"{folder}/") for folder in folders)


def matching(folders: Iterable[str]) -> str:
    """Returns a regular expression (RE2) for paths that hide the image, for `folders`, and for paths in these."""
    # `/..` is the root itself.
    first, further = r"/([.]{0,2}/)*", r"/([.]?/)*"
    names = "|".join(folder.strip("/").replace("/", further) for folder in folders)
    hidden = "|".join(path.strip("/") for path in IMAGE_PATHS)
    return rf"^{first}([.]{{0,2}}|({hidden})(/[.]?)*|({names})(/.*)?)$"


def _resolved(path: str) -> str:
    # normpath keeps two leading slashes, because some systems treat them differently.
    return "/" + posixpath.normpath(path).lstrip("/")
