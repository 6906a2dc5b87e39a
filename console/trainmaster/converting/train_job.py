"""Converts a TrainJob (trainer.kubeflow.org/v1alpha1) through a JobSet, which Kubeflow Trainer would make of it.

The JobSet starts as the runtime's template. The TrainJob's patches, initializers and trainer are merged into it, and
the result is converted like any JobSet. The runtime is given by the caller, or is one that Kubeflow Trainer installs
(August 2026). podTemplateOverrides, podSpecOverrides, labels and annotations of older releases are supported too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmaster.converting.commands import keep_processes
from trainmaster.converting.fields import Draft, Field, Path, merged, sequence
from trainmaster.converting.groups import answer_pods
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
_WORKERS: Path = ("spec", "workers")
_GANG: Path = ("spec", "scheduling", "gang")


def convert_train_job(manifest: Field, runtime: Field | None) -> Draft:
    """Converts a TrainJob. `runtime` is the runtime that the TrainJob refers to, if given."""
    spec = manifest.get("spec") or Field(None)
    name, namespace = manifest.text("metadata", "name"), manifest.text("metadata", "namespace")
    below = _runtime(spec, runtime)
    policy = below.get("mlPolicy") or Field(None)
    template = below.get("template") or Field(None)
    job_set = template.get("spec") or Field(None)
    for patch in spec.each("runtimePatches"):
        job_set, template = _patched(patch, job_set, template)
    for name_of_list in ("podTemplateOverrides", "podSpecOverrides"):
        for override in spec.each(name_of_list):
            job_set = _overridden(override, job_set)
    for kind in _INITIALIZERS:
        initializer = spec.get("initializer", kind)
        if initializer is not None:
            job_set = _initialized(initializer, f"{kind}-initializer", job_set)
    trains = _trains(job_set)
    trainer = spec.get("trainer") or Field(None)
    job_set = _trained(trainer, trains, job_set)
    if policy.get("mpi") is not None:
        job_set = _without_daemons(trains, job_set)
    nodes, default = trainer.get("numNodes"), policy.get("numNodes")
    if nodes is not None and default is not None:
        default.dropped(f"{nodes} replaces it")
    counted = nodes or default
    if counted is not None and counted.whole() is None:
        answer_pods(counted, _WORKERS)
        counted = None
    torch = policy.get("torch") is not None
    draft = convert_spec(job_set, name, namespace, Training(trains, _TRAINER, torch, counted))
    if counted is not None:
        draft.keep(counted, _WORKERS)
    _framework(policy, trainer, draft)
    _pod_group(below.get("podGroupPolicy"), draft)
    convert_metadata(manifest, draft)
    for holder in (spec, template.get("metadata") or Field(None)):
        for kind in ("labels", "annotations"):
            labels = holder.get(kind)
            if labels is not None:
                convert_labels(labels, kind, draft)
    _rest(spec, template, job_set, draft)
    return draft


def _runtime(spec: Field, given: Field | None) -> Field:
    """Returns the runtime's spec, and answers the TrainJob's reference to it."""
    reference = spec.get("runtimeRef") or Field(None)
    name = reference.get("name")
    if given is not None:
        for part in ("apiVersion", "kind", "metadata"):
            field = given.get(part)
            if field is not None:
                field.dropped("the runtime is merged into the job")
        reference.dropped("the runtime is merged into the job")
        return given.get("spec") or Field(unknown())
    known = builtin(str(name.value)) if name is not None else None
    if known is None:
        if name is not None:
            kind = reference.text("kind") or "ClusterTrainingRuntime"
            name.refused(
                f"this {kind} isn't in the files; convert it too, as `kubectl get {kind.lower()} {name.value} -o yaml` "
                "prints it"
            )
        reference.dropped("spec.runtimeRef.name has the answer")
        return Field(unknown())
    image = f", in which the image is {known.image}" if known.image else ""
    reference.dropped(f"the runtime is Kubeflow Trainer's own{image}; if yours is another one, convert it too")
    return Field(known.spec)


def _patched(patch: Field, job_set: Field, template: Field) -> tuple[Field, Field]:
    for part in ("manager", "time"):
        field = patch.get(part)
        if field is not None:
            field.dropped("nobody else changes the job")
    over = patch.get("trainingRuntimeSpec", "template")
    if over is None:
        return job_set, template
    metadata, spec = over.get("metadata"), over.get("spec")
    if metadata is not None:
        template = merged(template, Field.mapping({"metadata": metadata}))
    return (job_set if spec is None else merged(job_set, spec)), template


def _overridden(override: Field, job_set: Field) -> Field:
    """Merges an override of pods (Kubeflow Trainer before 2.2) into the replicatedJobs that the override names."""
    pod: dict[str, Field] = {}
    metadata, spec = override.get("metadata"), override.get("spec")
    if metadata is not None:
        pod["metadata"] = metadata
    if spec is None:
        # podSpecOverrides contain the pod's fields directly.
        fields = {
            name: each for name, each in (override.fields or {}).items() if name not in ("targetJobs", "metadata")
        }
        spec = Field.mapping(fields, override.path) if fields else None
    if spec is not None:
        pod["spec"] = spec
    for target in override.each("targetJobs"):
        job = str(target.text("name"))
        if _replicated(job_set, job) is None:
            target.refused("the runtime has no such job")
            continue
        target.dropped("the pods' fields are merged into its own")
        job_set = _with(job_set, job, Field.mapping({"template": Field.mapping(pod, override.path)}, override.path))
    return job_set


def _initialized(initializer: Field, job: str, job_set: Field) -> Field:
    """Merges an initializer into the runtime's job with this name."""
    if _replicated(job_set, job) is None:
        initializer.refused(
            f"the runtime has no {job}; fill a volume by an init container in spec.podTemplate, or by a Job before"
        )
        return job_set
    uri, secret = initializer.get("storageUri"), initializer.get("secretRef")
    container: dict[str, Field] = {"name": _name(job, initializer)}
    variables = list(initializer.each("env"))
    if uri is not None:
        variables.append(Field.mapping({"name": _name("STORAGE_URI", uri), "value": uri}, uri.path))
    if variables:
        container["env"] = sequence(variables, initializer)
    if secret is not None:
        container["envFrom"] = sequence([Field.mapping({"secretRef": secret}, secret.path)], initializer)
    return _with(job_set, job, _in_container(container, initializer))


def _trained(trainer: Field, job: str, job_set: Field) -> Field:
    """Merges the trainer into the training container."""
    container: dict[str, Field] = {"name": _name(_TRAINER, trainer)}
    for name in ("image", "command", "args", "env"):
        field = trainer.get(name)
        if field is not None:
            container[name] = field
    resources = trainer.get("resourcesPerNode")
    if resources is not None:
        container["resources"] = resources
    return _with(job_set, job, _in_container(container, trainer)) if len(container) > 1 else job_set


def _in_container(container: dict[str, Field], owner: Field) -> Field:
    made = Field.mapping(container, owner.path)
    pod = Field.mapping({"containers": sequence([made], owner)}, owner.path)
    return Field.mapping({"template": Field.mapping({"spec": pod}, owner.path)}, owner.path)


def _with(job_set: Field, job: str, spec: Field) -> Field:
    """Returns a JobSet's spec with a Job's spec merged into one of its replicatedJobs."""
    template = Field.mapping({"spec": spec}, spec.path)
    item = Field.mapping({"name": _name(job, spec), "template": template}, spec.path)
    return merged(job_set, Field.mapping({"replicatedJobs": sequence([item], spec)}, spec.path))


def _name(name: str, owner: Field) -> Field:
    """Returns a field with a name, which merging needs but no manifest contains."""
    return Field(name, owner.path)


def _replicated(job_set: Field, name: str) -> Field | None:
    return next((each for each in job_set.each("replicatedJobs") if each.text("name") == name), None)


def _trains(job_set: Field) -> str:
    """Returns the name of the replicatedJob with the trainer's label, or else the usual name."""
    labelled = [
        each.text("name")
        for each in job_set.each("replicatedJobs")
        if each.get("template", "metadata", "labels", _STEP) is not None
        and each.text("template", "metadata", "labels", _STEP) == "trainer"
    ]
    return next(iter(labelled), _TRAINER)


def _without_daemons(trains: str, job_set: Field) -> Field:
    """Returns a JobSet's spec without the SSH daemons that mpirun needs."""
    fields = dict(job_set.fields or {})
    for each in job_set.each("replicatedJobs"):
        if each.text("name") == _TRAINER and trains != _TRAINER:
            each.refused(_FRAMEWORKS["mpi"])
    kept = [each for each in job_set.each("replicatedJobs") if trains == _TRAINER or each.text("name") != _TRAINER]
    fields["replicatedJobs"] = sequence(kept, job_set)
    return Field.mapping(fields, job_set.path)


def _framework(policy: Field, trainer: Field, draft: Draft) -> None:
    processes = trainer.get("numProcPerNode")
    if processes is not None:
        keep_processes(processes, draft)
    torch = policy.get("torch")
    if torch is not None:
        _torch(torch, processes, draft)
    for name, reason in _FRAMEWORKS.items():
        field = policy.get(name)
        if field is not None:
            field.refused(reason)


def _torch(torch: Field, processes: Field | None, draft: Draft) -> None:
    count = torch.get("numProcPerNode")
    if count is not None and processes is not None:
        count.dropped(f"{processes} replaces it")
    elif count is not None:
        keep_processes(count, draft)
    elastic = torch.get("elasticPolicy")
    if elastic is not None:
        for theirs, ours in (("minNodes", "minWorkers"), ("maxNodes", "maxWorkers")):
            field = elastic.get(theirs)
            if field is not None:
                draft.keep(field, ("spec", "elastic", ours))
        restarts = elastic.get("maxRestarts")
        if restarts is not None:
            draft.keep(restarts, ("spec", "failurePolicy", "maxRestarts"))
        elastic.refused("no autoscaler is made; make a HorizontalPodAutoscaler for the job's scale subresource")
    torch.dropped("torchrun is the default launcher")


def _pod_group(policy: Field | None, draft: Draft) -> None:
    if policy is None:
        return
    for name in ("coscheduling", "volcano"):
        below = policy.get(name)
        if below is None:
            continue
        seconds, topology = below.get("scheduleTimeoutSeconds"), below.get("networkTopology")
        if seconds is not None:
            draft.keep(seconds, (*_GANG, "timeoutSeconds"))
        if topology is not None:
            topology.refused("a gang has no tiers of a network; spec.scheduling.topology packs by a node label")
        draft.set((*_GANG, "scheduler"), name)
        if seconds is None and topology is None:
            draft.keep(below, (*_GANG, "scheduler"), name)


def _rest(spec: Field, template: Field, job_set: Field, draft: Draft) -> None:
    metadata: Any = template.get("metadata")
    if metadata is not None:
        metadata.dropped("the job has a name of its own")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None:
        draft.keep(deadline, ("spec", "runPolicy", "activeDeadlineSeconds"))
    convert_suspend(spec.get("suspend"), draft)
    held = job_set.get("suspend")
    if held is not None:
        held.dropped("the TrainJob's own suspend counts")
    convert_manager(spec.get("managedBy"))


# Kubeflow Trainer's runtimes that only start torchrun in a PyTorch image.
_TORCH_IMAGES = {"torch-distributed": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"}
# Runtimes for other frameworks. Their content doesn't matter.
_OTHERS = {
    "deepspeed-distributed": "mpi",
    "mlx-distributed": "mpi",
    "jax-distributed": "jax",
    "xgboost-distributed": "xgboost",
}


class Builtin(NamedTuple):
    """Builtin is one of Kubeflow Trainer's own runtimes, with its spec and its image, if any."""

    spec: Mapping[str, Any]
    image: str


def builtin(name: str) -> Builtin | None:
    """Returns one of Kubeflow Trainer's own runtimes, or None."""
    if name in _TORCH_IMAGES:
        return Builtin(_spec("torch", _TORCH_IMAGES[name]), _TORCH_IMAGES[name])
    return Builtin(_spec(_OTHERS[name], ""), "") if name in _OTHERS else None


def unknown() -> Mapping[str, Any]:
    """Returns a replacement for a missing runtime: a container without an image."""
    return _spec("torch", "")


def _spec(framework: str, image: str) -> Mapping[str, Any]:
    container = {"name": "node", **({"image": image} if image else {})}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    return {"mlPolicy": {framework: {}}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}}
