"""Turns pydantic's errors into messages with a remedy: unknown fields, wrong types, values out of range.

If a field exists elsewhere, the message names the right place, either among the spec's own fields (read from the
models) or in a pod (`pod_schema`). A table lists replacements for fields of other APIs: Kubeflow's PyTorchJob, MPIJob
and TrainJob, JobSet, Volcano, Kubernetes' Job, and the command lines of launchers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainmaster_operator.api.pod_schema.fields import POD, pod_types
from trainmaster_operator.api.pod_template import REFUSED_POD_FIELDS, REFUSED_WORKER_FIELDS
from trainmaster_operator.api.problems import (
    SIMILAR,
    VERY_SIMILAR,
    Problem,
    either,
    nearest,
    only_longer,
    plain,
    typographic_quotes,
    wrong_type,
)
from trainmaster_operator.api.v1alpha1 import JobSpec, SpecModel
from trainmaster_operator.api.values import HALF_A_CHARACTER, out_of_range, show, unfit

# Tags of the discriminated union of resources.cpu, which pydantic puts into the location.
_TAGS = frozenset({"object", "quantity"})
# Maximum number of values in a message.
_FEW = 8


def unknown_field(path: str, field: str, known: tuple[str, ...], model: type[SpecModel] | None = None) -> str:
    """Returns the message for an unknown field at `path`, which names the nearest known field or the right place."""
    odd = [character for character in field if not character.isascii()]
    if odd:
        written = "".join(character for character in field if character.isascii()).strip()
        message = unknown_field(path, written, known, model) if written not in known else f"did you mean {written}?"
        what = unicodedata.name(odd[0], "character without a name").lower()
        return f"unknown field with a {what} (U+{ord(odd[0]):04X}) in it; {message.removeprefix('unknown field; ')}"
    near = nearest(field, known, VERY_SIMILAR) or only_longer(field, known)
    if near is None:
        place = belongs(field, path, model)
        if place is not None:
            return f"unknown field; {place}"
        near = nearest(field, known)
    if near is not None:
        return f"unknown field; did you mean {near}?"
    if len(known) > _FEW:
        return "unknown field; remove it (`kubectl explain dtj.spec` lists the fields)"
    return f"unknown field; use one of {', '.join(known)}" if known else "unknown field; remove it"


def problems_of(error: ValidationError, root: type[SpecModel], path: str) -> list[Problem]:
    """Returns the problems in pydantic's error about a `root` model at `path`, in the order of the model's fields.

    If a required field is misspelled or in the wrong place, only this mistake is reported, and not a missing field.
    """
    details = error.errors(include_url=False)
    found = [(detail["type"], _problem_of(detail, root, path)) for detail in details]
    unknown = [problem for kind, problem in found if kind == "extra_forbidden"]
    return [
        problem
        for kind, problem in found
        if kind != "missing" or not any(_stands_for(other, problem.field) for other in unknown)
    ]


def _stands_for(unknown: Problem, field: str) -> bool:
    """Returns whether the remedy for an unknown field names this required field."""
    parent, _, name = field.rpartition(".")
    return unknown.message.endswith((f"; set {field}", f"; it belongs in {field}")) or (
        unknown.field.startswith(f"{parent}.") and unknown.message.endswith(f"; did you mean {name}?")
    )


def _problem_of(detail: ErrorDetails, root: type[SpecModel], path: str) -> Problem:
    location = detail["loc"]
    tagged = (part for at, part in enumerate(location) if not (part in _TAGS and location[at - 1] == "cpu"))
    parts = [path, *tagged]
    value = ... if detail["type"] == "missing" else detail["input"]
    field = str(location[-1]) if location else path
    message = wrong_type(detail["type"], detail["input"], field, _required(_model_at(root, location)))
    if message is not None or detail["type"] == "literal_error":
        message = typographic_quotes(detail["input"]) or message
    if message is None:
        message = _sentence(detail, _model_at(root, location[:-1]), field, _join(parts[:-1]))
    return Problem(_join(parts), value, message)


def _sentence(detail: ErrorDetails, model: type[SpecModel] | None, field: str, parent: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    # The setup line may hold secrets, and more people can read a status.
    shown = "this text" if field == "setup" and isinstance(value, str) else show(value)
    match kind:
        case "extra_forbidden":
            return unknown_field(parent, field, tuple(_fields(model)), model)
        case "missing":
            return f"is missing; set it{_described(model, field)}"
        case "greater_than_equal" | "greater_than" | "less_than_equal":
            return f"{shown} {out_of_range(context)}"
        case "literal_error":
            what = "known" if isinstance(value, str) else "a value that it can have"
            return f"{shown} is not {what}; {_alternatives(value, context['expected'])}"
        case "string_pattern_mismatch":
            return unfit(value, context["pattern"])
        case "string_too_short" | "too_short":
            return "is empty; give it a value, or remove it"
        case "string_too_long":
            return f"{shown} is too long; use at most {context['max_length']} characters"
        case "too_long":
            return f"has {context['actual_length']} items; use at most {context['max_length']}"
        case "string_unicode":
            return HALF_A_CHARACTER
        case "quantity" | "processes" | "json" | "time" | "pattern" | "reason":
            # Validators of `values`, `spec` and `parsing` raise these errors with their own messages.
            return detail["msg"]
    return f"{shown} can't be used; see the field in docs/reference.md"


def _alternatives(value: Any, expected: str) -> str:
    """Returns the remedy that names a field's allowed values, or the value that was probably intended."""
    known = re.findall(r"'([^']*)'", expected)
    given = str(value) if isinstance(value, str) else ""
    near = nearest(given, known, VERY_SIMILAR if len(known) <= _FEW else SIMILAR) or only_longer(given, known)
    return f"did you mean {near}?" if near else f"use {expected.replace(chr(39), '')}"


def _described(model: type[SpecModel] | None, field: str) -> str:
    """Describes a missing field by its allowed values if these are listed, or else by its description's beginning."""
    info = _fields(model).get(field)
    if info is None:
        return ""
    if get_origin(info.annotation) is Literal:
        return f" to {either(get_args(info.annotation))}"
    first = re.split(r"[.;:] |\.$", info.description or "")[0]
    return f" ({first})" if first else ""


def _required(model: type[SpecModel] | None) -> tuple[str, ...]:
    """Returns a model's required fields if all are simple values, or else its first two fields."""
    fields = list(_fields(model).items())
    required = [(name, info) for name, info in fields if info.is_required()]
    if not required or any(model_in(info.annotation) is not None for _, info in required):
        required = fields[:2]
    return tuple(name for name, _ in required)


def _fields(model: type[SpecModel] | None) -> dict[str, FieldInfo]:
    """Returns a model's fields by their names in JSON."""
    return {info.alias or name: info for name, info in model.model_fields.items()} if model is not None else {}


def _model_at(root: type[SpecModel], location: tuple[int | str, ...]) -> type[SpecModel] | None:
    model: type[SpecModel] | None = root
    for part in location:
        if isinstance(part, int) or part in _TAGS:
            continue
        info = _fields(model).get(part)
        model = None if info is None else model_in(info.annotation)
    return model


def _join(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


# Replacements for fields of other APIs.
_OTHERS_FIELDS = {
    "set spec.workers": "replicas numWorkers workerCount numNodes nnodes nodes nodeCount instanceCount parallelism "
    "completions worldSize ntasks",
    "set spec.warmStart.preload": "preload preloadModules preimport",
    "set spec.spares": "hotSpares spareNodes spareReplicas standbyReplicas",
    "set spec.processesPerWorker": "nproc nprocPerNode ntasksPerNode numProcPerNode procPerNode processesPerNode "
    "slotsPerWorker ranksPerWorker",
    "set spec.resources.gpus": "nvidia.com/gpu amd.com/gpu gpu count gpuCount numGpus gpusPerNode gpusPerWorker "
    "resourcesPerNode gres",
    "set spec.resources.cpu": "cpus",
    "set spec.resources.memory": "mem",
    "set spec.resources.sharedMemory": "shm shmSize sharedMemorySize",
    "set gpus, cpu and memory in spec.resources": "limits requests",
    "set spec.command, such as [python, train.py]": "entrypoint script cmd program main exec",
    "set spec.training": "config trainingConfig hyperparameters mixedPrecision",
    "set spec.failurePolicy.maxRestarts": "backoffLimit restartPolicy maxRetry maxRetries retries restarts "
    "restartLimit restartCount",
    "set spec.failurePolicy.backoff.initialSeconds": "backoffSeconds restartDelay restartDelaySeconds retryDelay "
    "retryDelaySeconds delaySeconds restartBackoff restartBackoffSeconds",
    "set spec.failurePolicy.startupSeconds": "startupTimeout startupTimeoutSeconds startTimeout startTimeoutSeconds "
    "startupDeadlineSeconds",
    "set spec.failurePolicy.hang.progressSeconds": "hangSeconds hangTimeout hangTimeoutSeconds stallSeconds "
    "stallTimeout progressTimeout progressTimeoutSeconds progressDeadlineSeconds",
    "set spec.elastic with minWorkers and maxWorkers": "elasticPolicy",
    "set spec.elastic.minWorkers": "minReplicas minNodes",
    "set spec.elastic.maxWorkers": "maxReplicas maxNodes",
    "set spec.runPolicy.keepPods to None, Failed or All": "cleanPodPolicy",
    "set spec.runPolicy.suspend": "suspended paused",
    "set spec.runPolicy.ttlSecondsAfterFinished": "ttl ttlSeconds",
    "set spec.runPolicy.activeDeadlineSeconds": "timeout time deadline activeDeadline",
    "set spec.scheduling.gang.scheduler; all workers are one gang": "minAvailable schedulingPolicy gangScheduling "
    "podGroup coscheduling",
    "set spec.scheduling.queue": "queueName localQueue partition",
    "set spec.scheduling.priorityClassName": "priorityClass",
    "set spec.checkpoint.path": "checkpointDir checkpointPath",
    f"set spec.checkpoint.volume.claimName, or mount it by {POD}.volumes": "persistentVolumeClaim pvc",
    f"it belongs in {POD}.containers, where the worker's container is called worker": "container sidecars",
    f"it belongs in {POD}.imagePullSecrets": "imagePullSecret",
    f"it belongs in {POD}.serviceAccountName": "serviceAccount",
    f"it belongs in {POD}.securityContext": "fsGroup fsGroupChangePolicy runAsGroup supplementalGroups sysctls "
    "seLinuxOptions seccompProfile",
    f"it belongs in {POD}.containers, in securityContext of the one with name: worker": "capabilities privileged "
    "allowPrivilegeEscalation procMount",
    "set spec.workers, spec.image and spec.command; anything else of a pod belongs in spec.podTemplate": "template "
    "replicaSpecs pytorchReplicaSpecs tfReplicaSpecs mpiReplicaSpecs xgbReplicaSpecs jaxReplicaSpecs replicatedJobs "
    "leaderWorkerTemplate trainer tasks jobTemplate podTemplateOverrides podSpec podSpecOverrides runtimeRef master "
    "launcherSpec",
    "the workers of a job find each other by themselves; remove it": "runLauncher runLauncherAsWorker "
    "runLauncherAsNode launcherCreationPolicy mpiImplementation sshAuthMountPath rdzvBackend rdzvEndpoint rdzvHost "
    "rdzvPort rdzvId rdzvConf masterAddr masterPort nodeRank",
    f"it belongs in {POD}.containers, as env of the one with name: worker": "environment envVars environmentVariables",
    f"it belongs in {POD}.containers, in resources of the one with name: worker": "ephemeralStorage",
    f"set {POD}.nodeSelector to a label of such nodes": "gpuType instanceType nodeType",
    f"mount it by {POD}.volumes": "storage disk",
    "it belongs in metadata": "name namespace labels annotations generateName",
    "it belongs at the top of the file, not indented": "apiVersion kind metadata spec status",
}
# Settings of training programs that people write into the spec itself.
_TRAINING_FIELDS = {"seed", "epochs", "lr", "learningrate", "model", "dataset", "batchsize", "optimizer", "steps"}
_BY_PLAIN_NAME = {plain(name): remedy for remedy, names in _OTHERS_FIELDS.items() for name in names.split()}
# An extended resource, such as nvidia.com/mig-1g.5gb.
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+")
_GROUP = re.compile(r"spec\.workerGroups\[\d+\]")
_OF_A_GROUP = re.compile(r"spec(?=\.(workers|resources)\b)")
_PODS_FIELDS = {plain(name): name for name in pod_types()["PodSpec"].fields}
_CONTAINERS_FIELDS = {plain(name): name for name in pod_types()["Container"].fields}


def belongs(field: str, path: str, model: type[SpecModel] | None) -> str | None:
    """Returns the remedy that names the right place of a field that the model at `path` doesn't define, or None.

    The name is searched below `path` first, then in other APIs, then elsewhere in the spec (for all workers, in a pod,
    in a group). Similar names elsewhere aren't considered.
    """
    own = _places_described(field, "spec", JobSpec)
    devices = f"set spec.resources.gpus, and spec.accelerator.resourceName to {field}"
    remedies = (
        _places_described(field, path, model) if model is not None and path.startswith("spec.") else None,
        "it belongs in spec.training" if path == "spec" and plain(field) in _TRAINING_FIELDS else None,
        _BY_PLAIN_NAME.get(plain(field)),
        devices if _RESOURCE.fullmatch(field) else None,
        own if own is not None and "[]" not in own else None,
        _of_pods(field),
        own,
    )
    remedy = next((each for each in remedies if each is not None), None)
    if remedy is None or remedy == f"it belongs in {path}.{field}":
        return None
    # Each group defines its own workers and resources.
    group = _GROUP.match(path)
    return remedy if group is None else _OF_A_GROUP.sub(group[0], remedy)


def _of_pods(field: str) -> str | None:
    name = plain(field)
    if name in _PODS_FIELDS:
        return REFUSED_POD_FIELDS.get(_PODS_FIELDS[name], f"it belongs in {POD}.{_PODS_FIELDS[name]}")
    if name not in _CONTAINERS_FIELDS:
        return None
    field = _CONTAINERS_FIELDS[name]
    place = f"it belongs in {POD}.containers, as {field} of the one with name: worker"
    return REFUSED_WORKER_FIELDS.get(field, place)


def _places_described(field: str, path: str, model: type[SpecModel]) -> str | None:
    places = _places(model).get(plain(field), ())
    least = min((place.count(".") for place in places), default=0)
    shallowest = [f"{path}.{place}" for place in places if place.count(".") == least]
    return f"it belongs in {' or '.join(shallowest[:2])}" if shallowest else None


@cache
def _places(model: type[SpecModel]) -> Mapping[str, list[str]]:
    """Returns the places of each field below a model, relative to the model, by the field's plain name."""
    found: dict[str, list[str]] = {}
    for name, info in _fields(model).items():
        found.setdefault(plain(name), []).append(name)
        inner = model_in(info.annotation)
        for below, places in _places(inner).items() if inner is not None else ():
            here = f"{name}{'[]' if _is_list(info.annotation) else ''}"
            found.setdefault(below, []).extend(f"{here}.{place}" for place in places)
    return found


def model_in(annotation: Any) -> type[SpecModel] | None:
    """Returns the model that a field's annotation contains, directly or in an optional or list type, or None."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return annotation
    for part in get_args(annotation):
        found = model_in(part)
        if found is not None:
            return found
    return None


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list or any(_is_list(part) for part in get_args(annotation))
