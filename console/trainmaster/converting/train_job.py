"""Converts a TrainJob (trainer.kubeflow.org/v1alpha1) through the JobSet that Kubeflow Trainer would create for it.

The JobSet starts as the runtime's template. The TrainJob's patches, initializers and trainer are merged into it, and
the result is converted like any JobSet. The runtime is given by the caller, or is one that Kubeflow Trainer installs
(August 2026). The podTemplateOverrides, podSpecOverrides, labels and annotations of older releases are supported too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.converting.commands import keep_processes
from trainmaster.converting.fields import MISSING, Draft, Field, Path, merged
from trainmaster.converting.groups import NO_AUTOSCALER, WORKERS, answer_pods
from trainmaster.converting.job_set import Training, convert_spec
from trainmaster.converting.metadata import convert_labels, convert_manager, convert_metadata, convert_suspend

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER = "node"
_INITIALIZERS = ("dataset", "model")
_FRAMEWORKS = {
    "mpi": "Trainmaster starts no mpirun, and there is no hostfile and no SSH; with torch.distributed in place of MPI "
    "none of them is needed",
    "jax": "Trainmaster sets no JAX_* variables; with RANK, WORLD_SIZE and MASTER_ADDR the program can initialize by "
    "itself",
    "xgboost": "Trainmaster starts no tracker of XGBoost; it is for PyTorch",
    "flux": "Trainmaster installs no Flux; it is for PyTorch",
}
_GANG: Path = ("spec", "scheduling", "gang")


def convert_train_job(manifest: Field, runtime: Field = MISSING) -> Draft:
    """Converts a TrainJob. `runtime` is the runtime that the TrainJob refers to, if given."""
    spec = manifest.get("spec")
    name, namespace = manifest.text("metadata", "name"), manifest.text("metadata", "namespace")
    below = _runtime(spec, runtime)
    policy, template = below.get("mlPolicy"), below.get("template")
    job_set = template.get("spec")
    for patch in spec.get("runtimePatches").items:
        job_set, template = _patched(patch, job_set, template)
    for name_of_list in ("podTemplateOverrides", "podSpecOverrides"):
        for override in spec.get(name_of_list).items:
            job_set = _overridden(override, job_set)
    for kind in _INITIALIZERS:
        job_set = _initialized(spec.get("initializer", kind), f"{kind}-initializer", job_set)
    trains = _trains(job_set)
    trainer = spec.get("trainer")
    job_set = _trained(trainer, trains, job_set)
    if policy.get("mpi"):
        job_set = _without_daemons(trains, job_set)
    nodes, default = trainer.get("numNodes"), policy.get("numNodes")
    if nodes:
        default.dropped(f"{nodes} replaces it")
    counted = nodes or default
    if counted.whole() is None:
        answer_pods(counted, WORKERS)
        counted = MISSING
    training = Training(trains, _TRAINER, bool(policy.get("torch")), counted)
    draft = convert_spec(job_set, name, namespace, training)
    draft.keep(counted, WORKERS)
    _framework(policy, trainer, draft)
    _pod_group(below.get("podGroupPolicy"), draft)
    convert_metadata(manifest, draft)
    for holder in (spec, template.get("metadata")):
        for kind in ("labels", "annotations"):
            convert_labels(holder.get(kind), kind, draft)
    _rest(spec, template, job_set, draft)
    return draft


def _runtime(spec: Field, given: Field) -> Field:
    """Returns the runtime's spec, and answers the TrainJob's reference to it."""
    reference = spec.get("runtimeRef")
    name = reference.get("name")
    if given:
        for field in (given.get("apiVersion"), given.get("kind"), given.get("metadata"), reference):
            field.dropped("the runtime is merged into the job")
        return given.get("spec") or Field(_spec("torch"))
    framework, image = _BUILTIN.get(name.text(), ("", ""))
    if framework:
        image_note = f", in which the image is {image}" if image else ""
        reference.dropped(f"the runtime is Kubeflow Trainer's own{image_note}; if yours is another one, convert it too")
        return Field(_spec(framework, image))
    kind = reference.text("kind") or "ClusterTrainingRuntime"
    command = f"kubectl get {kind.lower()} {name.value} -o yaml"
    name.refused(f"this {kind} isn't in the files; convert it too, as `{command}` prints it")
    reference.dropped("spec.runtimeRef.name has the answer")
    return Field(_spec("torch"))


def _patched(patch: Field, job_set: Field, template: Field) -> tuple[Field, Field]:
    for part in ("manager", "time"):
        patch.get(part).dropped("nobody else changes the job")
    over = patch.get("trainingRuntimeSpec", "template")
    if metadata := over.get("metadata"):
        template = merged(template, Field({"metadata": metadata}))
    return merged(job_set, over.get("spec")), template


def _overridden(override: Field, job_set: Field) -> Field:
    """Merges an override of pods (Kubeflow Trainer before 2.2) into the replicatedJobs that the override names."""
    pod = {name: field for name in ("metadata", "spec") if (field := override.get(name))}
    # podSpecOverrides contain the pod's fields directly.
    direct = {name: field for name, field in override.fields.items() if name not in ("targetJobs", "metadata")}
    if "spec" not in pod and direct:
        pod["spec"] = Field(direct, override.path)
    for target in override.get("targetJobs").items:
        job = target.text("name")
        if not job_set.get("replicatedJobs").item("name", job):
            target.refused("the runtime has no such job")
            continue
        target.dropped("the pods' fields are merged into its own")
        if pod:
            job_set = _with(job_set, job, Field({"template": Field(pod, override.path)}, override.path))
    return job_set


def _initialized(initializer: Field, job: str, job_set: Field) -> Field:
    if not initializer or not job_set.get("replicatedJobs").item("name", job):
        initializer.refused(
            f"the runtime has no {job}; fill a volume by an init container in spec.podTemplate, or by a Job before"
        )
        return job_set
    uri, secret = initializer.get("storageUri"), initializer.get("secretRef")
    container = {"name": Field(job, initializer.path)}
    variables = list(initializer.get("env").items)
    if uri:
        variables.append(Field({"name": Field("STORAGE_URI", uri.path), "value": uri}, uri.path))
    if variables:
        container["env"] = Field(variables, initializer.path)
    if secret:
        container["envFrom"] = Field([Field({"secretRef": secret}, secret.path)], initializer.path)
    return _with(job_set, job, _in_container(container, initializer))


def _trained(trainer: Field, job: str, job_set: Field) -> Field:
    names = {**{name: name for name in ("image", "command", "args", "env")}, "resourcesPerNode": "resources"}
    given = {ours: field for theirs, ours in names.items() if (field := trainer.get(theirs))}
    container = {"name": Field(_TRAINER, trainer.path), **given}
    return _with(job_set, job, _in_container(container, trainer)) if given else job_set


def _in_container(container: dict[str, Field], owner: Field) -> Field:
    pod = Field({"containers": Field([Field(container, owner.path)], owner.path)}, owner.path)
    return Field({"template": Field({"spec": pod}, owner.path)}, owner.path)


def _with(job_set: Field, job: str, spec: Field) -> Field:
    """Returns a JobSet's spec with a Job's spec merged into one of its replicatedJobs."""
    item = Field({"name": Field(job, spec.path), "template": Field({"spec": spec}, spec.path)}, spec.path)
    return merged(job_set, Field({"replicatedJobs": Field([item], spec.path)}, spec.path))


def _trains(job_set: Field) -> str:
    """Returns the name of the replicatedJob with the trainer's label, or else the usual name."""
    labelled = [
        each.text("name")
        for each in job_set.get("replicatedJobs").items
        if each.text("template", "metadata", "labels", _STEP) == "trainer"
    ]
    return next(iter(labelled), _TRAINER)


def _without_daemons(trains: str, job_set: Field) -> Field:
    """Returns a JobSet's spec without the SSH daemons that mpirun needs."""
    jobs = job_set.get("replicatedJobs").items
    kept = [each for each in jobs if trains == _TRAINER or each.text("name") != _TRAINER]
    for each in jobs:
        if each not in kept:
            each.refused(_FRAMEWORKS["mpi"])
    return Field({**job_set.fields, "replicatedJobs": Field(kept, job_set.path)}, job_set.path)


def _framework(policy: Field, trainer: Field, draft: Draft) -> None:
    processes = trainer.get("numProcPerNode")
    keep_processes(processes, draft)
    for name, reason in _FRAMEWORKS.items():
        policy.get(name).refused(reason)
    torch = policy.get("torch")
    count, elastic = torch.get("numProcPerNode"), torch.get("elasticPolicy")
    if processes:
        count.dropped(f"{processes} replaces it")
    else:
        keep_processes(count, draft)
    draft.keep(elastic.get("minNodes"), ("spec", "elastic", "minWorkers"))
    draft.keep(elastic.get("maxNodes"), ("spec", "elastic", "maxWorkers"))
    draft.keep(elastic.get("maxRestarts"), ("spec", "failurePolicy", "maxRestarts"))
    elastic.refused(NO_AUTOSCALER)
    torch.dropped("torchrun is the default launcher")


def _pod_group(policy: Field, draft: Draft) -> None:
    for name in ("coscheduling", "volcano"):
        below = policy.get(name)
        seconds, topology = below.get("scheduleTimeoutSeconds"), below.get("networkTopology")
        draft.keep(seconds, (*_GANG, "timeoutSeconds"))
        topology.refused("a gang has no tiers of a network; spec.scheduling.topology packs by a node label")
        if seconds or topology:
            draft.set((*_GANG, "scheduler"), name)
        else:
            draft.keep(below, (*_GANG, "scheduler"), name)


def _rest(spec: Field, template: Field, job_set: Field, draft: Draft) -> None:
    template.get("metadata").dropped("the job has a name of its own")
    draft.keep(spec.get("activeDeadlineSeconds"), ("spec", "runPolicy", "activeDeadlineSeconds"))
    convert_suspend(spec.get("suspend"), draft)
    job_set.get("suspend").dropped("the TrainJob's own suspend counts")
    convert_manager(spec.get("managedBy"))


# The framework and image of each runtime that Kubeflow Trainer installs. The one for PyTorch only starts torchrun in
# the image. The content of the others doesn't matter, because their frameworks are refused.
_BUILTIN = {
    "torch-distributed": ("torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
    "deepspeed-distributed": ("mpi", ""),
    "mlx-distributed": ("mpi", ""),
    "jax-distributed": ("jax", ""),
    "xgboost-distributed": ("xgboost", ""),
}


def _spec(framework: str, image: str = "") -> Mapping[str, Any]:
    """Returns the spec of a runtime with one container. An unknown runtime has no image."""
    container = {"name": "node", **({"image": image} if image else {})}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    return {"mlPolicy": {framework: {}}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}}
