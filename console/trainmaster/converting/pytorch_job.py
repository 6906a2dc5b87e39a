"""Converts a PyTorchJob (kubeflow.org/v1, training-operator 1.9). In older ones, runPolicy's fields are in spec."""

from __future__ import annotations

from trainmaster.converting.commands import keep_processes
from trainmaster.converting.fields import Draft, Field, Path, Target
from trainmaster.converting.groups import NO_AUTOSCALER, WORKERS, Part, answer_pods, combine, workers_path
from trainmaster.converting.metadata import convert_manager, convert_metadata, convert_suspend, waits_for_kueue
from trainmaster.converting.pods import convert_pod

# The types of replicas in the order of ranks.
_REPLICAS = ("Master", "Worker")
_CONTAINER = "pytorch"
_MAX_RESTARTS: Path = ("spec", "failurePolicy", "maxRestarts")
_RENDEZVOUS = ("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone")
# Which pods stay after the job's end. Kubeflow's value names the pods to remove, and our value names the pods to keep.
_KEEP_PODS = {"None": "All", "All": "None", "Running": "Failed"}


def convert_pytorch_job(manifest: Field) -> Draft:
    """Converts a PyTorchJob and answers each of its fields."""
    parts = [_part(name, manifest) for name in _REPLICAS if manifest.get("spec", "pytorchReplicaSpecs", name)]
    parts = _with_pods(parts)
    draft = combine(parts) if parts else Draft()
    for position, part in enumerate(parts):
        path = workers_path(draft, position)
        is_sum = len(parts) > 1 and path == WORKERS
        answer_pods(part.field.get("replicas"), path, "Master and Worker together" if is_sum else "")
    _restart_policies(parts, draft)
    spec = manifest.get("spec")
    keep_processes(spec.get("nprocPerNode"), draft)
    _elastic(spec.get("elasticPolicy"), draft, sum(part.workers for part in parts))
    convert_metadata(manifest, draft)
    for policy in (spec, spec.get("runPolicy")):
        _run_policy(policy, draft)
    return draft


def _part(name: str, manifest: Field) -> Part:
    field = manifest.get("spec", "pytorchReplicaSpecs", name)
    draft, replicas = Draft(), field.whole("replicas")
    field.get("template", "spec", "restartPolicy").dropped("the replica's own restartPolicy counts")
    convert_pod(field.get("template"), draft, _CONTAINER, torch=True)
    return Part(name.lower(), 1 if replicas is None else replicas, draft, field)


def _with_pods(parts: list[Part]) -> list[Part]:
    """Returns the parts that have pods, or else the first part, and answers the other templates."""
    found = [part for part in parts if part.workers > 0] or parts[:1]
    for part in parts:
        if part not in found:
            for leaf in part.field.leaves():
                leaf.answer = None
            part.field.dropped("it has no pods")
    return found


def _elastic(policy: Field, draft: Draft, workers: int) -> None:
    draft.keep(policy.get("minReplicas"), ("spec", "elastic", "minWorkers"))
    draft.keep(policy.get("maxReplicas"), ("spec", "elastic", "maxWorkers"))
    _restarts(policy.get("maxRestarts"), draft)
    keep_processes(policy.get("nProcPerNode"), draft)
    for name in _RENDEZVOUS:
        policy.get(name).dropped("the operator assigns the ranks, and each attempt has a rendezvous of its own")
    policy.get("metrics").refused(NO_AUTOSCALER)
    for name in ("minWorkers", "maxWorkers"):
        if draft.at(("spec", "elastic")) is not None and draft.at(("spec", "elastic", name)) is None:
            draft.set(("spec", "elastic", name), workers)


def _run_policy(policy: Field, draft: Draft) -> None:
    _restarts(policy.get("backoffLimit"), draft)
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        draft.keep(policy.get(name), ("spec", "runPolicy", name))
    clean = policy.get("cleanPodPolicy")
    if clean.text() in _KEEP_PODS:
        remark = "nothing is like Running: pods of a job that succeeded go too" if clean.value == "Running" else ""
        draft.keep(clean, ("spec", "runPolicy", "keepPods"), _KEEP_PODS[clean.text()], remark=remark)
    if scheduling := policy.get("schedulingPolicy"):
        _scheduling(scheduling, draft)
    convert_suspend(policy.get("suspend"), draft)
    convert_manager(policy.get("managedBy"))


def _restarts(field: Field, draft: Draft) -> None:
    """Puts a limit of restarts into the job. The first limit is used."""
    given = draft.at(_MAX_RESTARTS)
    if given is None:
        draft.keep(field, _MAX_RESTARTS)
    else:
        field.dropped(f"spec.failurePolicy.maxRestarts is {given} already")


def _scheduling(policy: Field, draft: Draft) -> None:
    gang: Path = ("spec", "scheduling", "gang")
    has_gang = draft.at(gang) is not None
    if not has_gang:
        # An option of Kubeflow's operator, not the manifest, determines the scheduler, so Volcano is assumed.
        draft.set(gang, {"scheduler": "volcano"})
    assumed = "" if has_gang else "Volcano is assumed, as the manifest names no gang scheduler"
    policy.get("minAvailable").dropped("a gang is all workers, or elastic.minWorkers")
    policy.get("minResources").dropped("it is computed from resources")
    queue: Path = ("spec", "scheduling", "queue")
    if waits_for_kueue(draft):
        policy.get("queue").refused(f"the job waits in Kueue's queue {draft.at(queue)}; keep one of them")
    else:
        draft.keep(policy.get("queue"), queue, remark=assumed)
    draft.keep(policy.get("priorityClass"), ("spec", "scheduling", "priorityClassName"))
    draft.keep(policy.get("scheduleTimeoutSeconds"), (*gang, "timeoutSeconds"), remark=assumed)


def _restart_policies(parts: list[Part], draft: Draft) -> None:
    """Answers the replicas' restartPolicy. The strictest policy applies to the group."""
    for part in parts:
        field = part.field.get("restartPolicy")
        if field.value == "Never":
            draft.keep(field, _MAX_RESTARTS, 0, remark="no restarts; deleted pods and drained nodes don't count")
        elif field.value == "ExitCode":
            rules: Path = ("spec", "failurePolicy", "rules")
            draft.set(rules, [{"reasons": ["Error"], "action": "Fail"}])
            remark = "an exit code from 1 to 127 is final, a signal is tried again"
            field.became(Target((*rules, 0)), remark=remark)
        elif field.value in ("OnFailure", "Always"):
            field.dropped("the whole group restarts when a rank fails")
