"""Converts a JobSet (jobset.x-k8s.io/v1alpha2). Its training replicatedJobs become a job, and the others become Jobs.

ReplicatedJobs with the same program train together, as groups if their resources differ. If there are several programs,
one of them trains. It is chosen by these criteria, in this order: it uses accelerators, torchrun starts it, it depends
on other replicatedJobs, it has the most pods. Other replicatedJobs (a driver, a data server, a preparation) become Jobs
(batch/v1) as the JobSet controller would create them. The JobSet's volume claims become claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from trainmaster.converting.commands import INDEX_VARIABLE
from trainmaster.converting.failures import convert_failures
from trainmaster.converting.fields import MISSING, POD, Draft, Field, Path, Target, at, put
from trainmaster.converting.groups import WORKERS, Part, answer_pods, combine, is_same_program, workers_path
from trainmaster.converting.metadata import convert_manager, convert_metadata, convert_suspend
from trainmaster.converting.pods import convert_pod
from trainmaster_operator.wire.values import mapping, mappings, text

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_OF_JOBS = {
    "completionMode": "every worker has its own rank",
    "podReplacementPolicy": "a lost pod is replaced",
    "suspend": "spec.suspend counts",
    "ttlSecondsAfterFinished": "the JobSet's own counts",
    "manualSelector": "the job's pods have labels of their own",
    "selector": "the job's pods have labels of their own",
    "managedBy": "Trainmaster's operator runs the job",
}
_NETWORK = {
    "enableDNSHostnames": "each worker has a name of its own",
    "publishNotReadyAddresses": "each worker has a name of its own from the start",
    "subdomain": "workers are called <job>-<index>.<job>; MASTER_ADDR is the first one's name",
}


@dataclass(frozen=True)
class Training:
    """Training contains a TrainJob's choices for the JobSet that the TrainJob becomes."""

    # The name of the replicatedJob that trains. If it is empty, the conversion chooses one.
    job: str = ""
    container: str = ""
    torch: bool = False
    workers: Field = MISSING


def convert_job_set(manifest: Field) -> Draft:
    """Converts a JobSet and answers each of its fields."""
    spec = manifest.get("spec")
    name, namespace = manifest.text("metadata", "name"), manifest.text("metadata", "namespace")
    draft = convert_spec(spec, name, namespace, Training())
    _exclusive(manifest.get("metadata", "annotations", _EXCLUSIVE), spec, draft)
    convert_metadata(manifest, draft)
    convert_suspend(spec.get("suspend"), draft)
    return draft


def convert_spec(spec: Field, name: str, namespace: str, training: Training) -> Draft:
    """Converts a JobSet's spec, without its metadata."""
    replicated = spec.get("replicatedJobs").items
    parts = {id(each): _part(each, training) for each in replicated}
    chosen = _chosen(list(parts.values()), training)
    draft = combine(chosen) if chosen else Draft()
    for position, part in enumerate(chosen):
        _workers(part, position, chosen, draft, training)
    names = [part.name for part in chosen]
    jobs = [job for part in chosen if (job := part.field.get("template", "spec"))]
    convert_failures(spec.get("failurePolicy"), jobs, names, draft)
    for part in chosen:
        _job(part.field, draft)
    for each in replicated:
        if parts[id(each)] not in chosen:
            for leaf in each.leaves():
                leaf.answer = None
            make_jobs(each, name, namespace, draft)
    make_claims(spec.get("volumeClaimPolicies").items, name, namespace, draft)
    _policies(spec, chosen, draft)
    return draft


def _part(replicated: Field, training: Training) -> Part:
    draft = Draft()
    convert_pod(replicated.get("template", "spec", "template"), draft, training.container, torch=training.torch)
    # The total number of pods in the replicatedJob's Jobs.
    counts = replicated.whole("replicas"), replicated.whole("template", "spec", "parallelism")
    workers = prod(1 if count is None else count for count in counts)
    if training.workers and replicated.text("name") == training.job:
        workers = training.workers.value
    return Part(replicated.text("name"), workers, draft, replicated)


def _chosen(parts: list[Part], training: Training) -> list[Part]:
    """Returns the parts that train together, in the order of ranks."""
    if not parts:
        return []
    if training.job:
        return [part for part in parts if part.name == training.job]
    best = max(parts, key=_weight)
    return [part for part in parts if is_same_program(part, best)]


def _weight(part: Part) -> tuple[bool, bool, bool, int]:
    waits = bool(part.field.get("dependsOn"))
    has_devices = bool(part.draft.at(("spec", "resources", "gpus")))
    launches = part.draft.at(("spec", "command")) is not None and part.draft.at(("spec", "launcher")) is None
    return has_devices, launches, waits, part.workers


def _workers(part: Part, position: int, chosen: list[Part], draft: Draft, training: Training) -> None:
    path = workers_path(draft, position)
    together = "all replicatedJobs together" if path == WORKERS and len(chosen) > 1 else ""
    name = part.field.get("name")
    if path != WORKERS:
        name.became(Target((*path[:-1], "name")))
    name.dropped("the job's pods are called by the job's name")
    job = part.field.get("template", "spec")
    completions, parallelism, replicas = job.get("completions"), job.get("parallelism"), part.field.get("replicas")
    if completions.value != (parallelism.value if parallelism else 1):
        completions.refused("there are as many workers as there is work; make it equal to parallelism")
    multiplied = "replicas times parallelism" if replicas and parallelism else ""
    for field in (replicas, completions, parallelism):
        if training.workers and field is not training.workers:
            field.dropped(f"{training.workers} counts")
        else:
            answer_pods(field, path, ", ".join(filter(None, (multiplied, together))))
    if len(chosen) > 1 or (part.field.whole("replicas") or 1) > 1:
        _indexes(job)
    for each in part.field.get("dependsOn").items:
        if each.text("name") in [other.name for other in chosen]:
            each.dropped("both are workers of the job, which start together, and their ranks wait for each other")
        each.refused(ORDER)
    part.field.get("groupName").dropped("all workers are one group")


def _indexes(job: Field) -> None:
    """Refuses a program that uses its completion index, which isn't unique because there are several Jobs."""
    for container in job.get("template", "spec", "containers").items:
        for name in ("command", "args"):
            if INDEX_VARIABLE in str(container.get(name).plain()):
                container.get(name).overruled(
                    f"{INDEX_VARIABLE} counts within one Job, and NODE_RANK in all; let the program use that"
                )


def _job(replicated: Field, draft: Draft) -> None:
    job = replicated.get("template", "spec")
    draft.keep(job.get("activeDeadlineSeconds"), ("spec", "runPolicy", "activeDeadlineSeconds"))
    for name, reason in _OF_JOBS.items():
        job.get(name).dropped(reason)
    for name in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
        job.get(name).refused(
            "no rank can fail or end by itself, the group does; set spec.failurePolicy and spec.successPolicy"
        )
    metadata = replicated.get("template", "metadata")
    metadata.dropped("there is no Job; set metadata.labels, or spec.podTemplate.metadata")


def _policies(spec: Field, chosen: list[Part], draft: Draft) -> None:
    draft.keep(spec.get("ttlSecondsAfterFinished"), ("spec", "runPolicy", "ttlSecondsAfterFinished"))
    for name, reason in _NETWORK.items():
        spec.get("network", name).dropped(reason)
    spec.get("coordinator").dropped("the workers know theirs as MASTER_ADDR")
    startup = spec.get("startupPolicy")
    has_jobs = any(each["kind"] == "Job" for each in draft.beside.values())
    if startup.text("startupPolicyOrder") == "InOrder" and has_jobs:
        startup.refused(ORDER)
    startup.dropped("all workers start together, and their ranks wait for each other")
    convert_manager(spec.get("managedBy"))
    _success(spec.get("successPolicy"), chosen, draft)


def _success(policy: Field, chosen: list[Part], draft: Draft) -> None:
    names = [part.name for part in chosen]
    listed = policy.listed("targetReplicatedJobs")
    path: Path = ("spec", "successPolicy")
    targeted = [part for part in chosen if part.name in listed or not listed]
    # If there is only one Job, Any and All mean the same.
    is_one_job = len(targeted) == len(listed or names) == 1 and (targeted[0].field.whole("replicas") or 1) == 1
    if policy.text("operator") not in ("All", "") and not is_one_job:
        policy.refused("a job succeeds when all workers do, or rank 0; set spec.successPolicy")
    elif not listed or set(names) <= set(listed):
        draft.keep(policy, path, "AllWorkers")
    elif listed == names[:1] and chosen[0].workers == 1:
        draft.keep(policy, path, "RankZero", remark=f"{names[0]} has rank 0")
    else:
        policy.refused("a job succeeds when all workers do, or rank 0; set spec.successPolicy")


def _exclusive(annotation: Field, spec: Field, draft: Draft) -> None:
    if any((each.whole("replicas") or 1) > 1 for each in spec.get("replicatedJobs").items):
        annotation.refused(
            "each Job would have a domain for itself, and a job packs all workers into one; set "
            "spec.scheduling.topology, or make a job for each domain"
        )
    else:
        path = ("spec", "scheduling", "topology", "key")
        draft.keep(annotation, path, remark="packs the workers into one domain; pods of other jobs may run there too")


ORDER = "jobs don't wait for each other; apply them in this order, with kubectl wait between them"


def make_jobs(replicated: Field, owner: str, namespace: str, draft: Draft) -> None:
    """Creates the Jobs of a replicatedJob that doesn't train."""
    name, count = replicated.text("name"), replicated.whole("replicas")
    template = replicated.get("template", "spec")
    documents = []
    if not name or f"Job {owner}-{name}-0" in draft.beside:
        replicated.refused("a replicatedJob needs a unique name; give it one")
        return
    for number in range(min(1 if count is None else count, 100)):
        document = f"Job {owner}-{name}-{number}"
        body = _object("batch/v1", "Job", f"{owner}-{name}-{number}", namespace, template)
        # The JobSet controller sets a default for this field, but the Job controller sets none.
        pod = at(body, ("spec", "template", "spec"))
        if isinstance(pod, dict):
            pod.setdefault("restartPolicy", "OnFailure")
        draft.beside[document] = body
        documents.append(document)
    for each in replicated.get("dependsOn").items:
        each.refused(ORDER)
    if not documents:
        replicated.dropped("it has no replicas")
        return
    template.kept(Target(("spec",), documents[0]))
    for part in ("name", "replicas"):
        replicated.get(part).became(*(Target(("metadata", "name"), document) for document in documents))
    metadata = replicated.get("template", "metadata")
    metadata.dropped("the Job is created separately, and its labels belong to the other operator")
    replicated.get("groupName").dropped("nobody asks for it")


def make_claims(policies: list[Field], owner: str, namespace: str, draft: Draft) -> None:
    """Creates a JobSet's claims, and adds their volumes to the pods whose containers mount them."""
    for policy in policies:
        policy.get("retentionPolicy").dropped("the claim is created separately and stays until you delete it")
        for template in policy.get("templates").items:
            _claim(template, owner, namespace, draft)


def _claim(template: Field, owner: str, namespace: str, draft: Draft) -> None:
    volume = template.text("metadata", "name")
    name = f"{volume}-{owner}"
    document = f"PersistentVolumeClaim {name}"
    body = _object("v1", "PersistentVolumeClaim", name, namespace, template.get("spec"))
    template.get("spec").kept(Target(("spec",), document))
    template.get("metadata", "name").became(Target(("metadata", "name"), document))
    for part in ("labels", "annotations"):
        if field := template.get("metadata", part):
            put(body, ("metadata", part), field.plain())
            field.kept(Target(("metadata", part), document))
    template.dropped("the claim is created separately, and the API server sets the rest")
    draft.beside = {document: body, **draft.beside}
    mounted = {"name": volume, "persistentVolumeClaim": {"claimName": name}}
    pods = [(draft.job, POD)]
    pods += [(each, ("spec", "template", "spec")) for each in draft.beside.values() if each["kind"] == "Job"]
    for root, pod in pods:
        if _mounts(at(root, pod), volume):
            put(root, (*pod, "volumes", len(at(root, (*pod, "volumes")) or [])), mounted)


def _object(api_version: str, kind: str, name: str, namespace: str, spec: Field) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return {**body, "spec": spec.plain() if spec else {}}


def _mounts(pod: Any, volume: str) -> bool:
    """Returns whether a container mounts a volume that its pod doesn't define."""
    pod = mapping(pod)
    containers = [*mappings(pod.get("containers")), *mappings(pod.get("initContainers"))]
    mounted = {text(mount.get("name")) for container in containers for mount in mappings(container.get("volumeMounts"))}
    return volume in mounted - {text(each.get("name")) for each in mappings(pod.get("volumes"))}
