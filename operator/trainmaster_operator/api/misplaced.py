"""A field that is known elsewhere is said to belong there: the spec's own fields, a pod's, and those of other APIs.

Where the spec's fields are is read from the models, and what a pod has from `pod_schema`. What other APIs call them
(Kubeflow's PyTorchJob, MPIJob and TrainJob, JobSet, Volcano, Kubernetes' Job, and the command lines of launchers) is a
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from trainmaster_operator.api.nearest import plain
from trainmaster_operator.api.pod_schema.fields import POD
from trainmaster_operator.api.pod_schema.types import pod_types
from trainmaster_operator.api.pod_template import REFUSED_POD_FIELDS, REFUSED_WORKER_FIELDS
from trainmaster_operator.api.v1alpha1 import JobSpec, SpecModel

# Further places say nothing more.
_MOST_PLACES = 2

# What to do instead of fields that other APIs have.
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
# What programs that train are configured by, where it stands in the spec itself.
_TRAINING_FIELDS = frozenset(
    ["seed", "epochs", "lr", "learningrate", "model", "dataset", "batchsize", "optimizer", "steps"]
)
_BY_PLAIN_NAME = {plain(name): remedy for remedy, names in _OTHERS_FIELDS.items() for name in names.split()}
# An extended resource, such as nvidia.com/mig-1g.5gb.
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+")
_GROUP = re.compile(r"spec\.workerGroups\[\d+\]")
_OF_A_GROUP = re.compile(r"spec(?=\.(workers|resources)\b)")
_PODS_FIELDS = {plain(name): name for name in pod_types()["PodSpec"].fields}
_CONTAINERS_FIELDS = {plain(name): name for name in pod_types()["Container"].fields}


def belongs(field: str, path: str, model: type[SpecModel] | None) -> str | None:
    """Returns where a field belongs that isn't known to the model at `path`, as the remedy of a sentence.

    The same name further down comes first, then what others call it, then the same name elsewhere: of all workers, of
    a pod, of a group. A name that is only similar to one elsewhere is no hint.
    """
    is_below = model is not None and path.startswith("spec.")
    own = _described(field, "spec", _places(JobSpec))
    remedies = (
        _described(field, path, _places(model)) if model is not None and is_below else None,
        "it belongs in spec.training" if path == "spec" and plain(field) in _TRAINING_FIELDS else None,
        _of_others(field),
        own if own is not None and "[]" not in own else None,
        _of_pods(field),
        own,
    )
    remedy = next((each for each in remedies if each is not None), None)
    if remedy is None or remedy == f"it belongs in {path}.{field}":
        return None
    # A group has workers and resources of its own.
    group = _GROUP.match(path)
    return remedy if group is None else _OF_A_GROUP.sub(group[0], remedy)


def _of_others(field: str) -> str | None:
    remedy = _BY_PLAIN_NAME.get(plain(field))
    if remedy is None and _RESOURCE.fullmatch(field):
        return f"set spec.resources.gpus, and spec.accelerator.resourceName to {field}"
    return remedy


def _of_pods(field: str) -> str | None:
    name = plain(field)
    if name in _PODS_FIELDS:
        return REFUSED_POD_FIELDS.get(_PODS_FIELDS[name], f"it belongs in {POD}.{_PODS_FIELDS[name]}")
    if name in _CONTAINERS_FIELDS and _CONTAINERS_FIELDS[name] in REFUSED_WORKER_FIELDS:
        return REFUSED_WORKER_FIELDS[_CONTAINERS_FIELDS[name]]
    if name in _CONTAINERS_FIELDS:
        return f"it belongs in {POD}.containers, as {_CONTAINERS_FIELDS[name]} of the one with name: worker"
    return None


def _described(field: str, path: str, places: Mapping[str, tuple[str, ...]]) -> str | None:
    found = next((places[name] for name in places if plain(name) == plain(field)), None)
    return (
        None if found is None else f"it belongs in {' or '.join(f'{path}.{place}' for place in found[:_MOST_PLACES])}"
    )


@cache
def _places(model: type[SpecModel]) -> Mapping[str, tuple[str, ...]]:
    """Returns where below a model each name of a field is, relative to it: the places that are least deep."""
    found: dict[str, list[str]] = {}
    for name, place in _below(model):
        found.setdefault(name, []).append(place)
    least = {name: min(place.count(".") for place in places) for name, places in found.items()}
    return {name: tuple(each for each in places if each.count(".") == least[name]) for name, places in found.items()}


def _below(model: type[SpecModel], path: str = "") -> Iterator[tuple[str, str]]:
    for python_name, info in model.model_fields.items():
        name = info.alias or python_name
        yield name, path + name
        inner = model_in(info.annotation)
        if inner is not None:
            yield from _below(inner, f"{path}{name}{'[]' if _is_list(info.annotation) else ''}.")


def model_in(annotation: Any) -> type[SpecModel] | None:
    """Returns the model that a field's annotation has, by itself, optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return annotation
    for part in get_args(annotation):
        found = model_in(part)
        if found is not None:
            return found
    return None


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list or any(_is_list(part) for part in get_args(annotation))
