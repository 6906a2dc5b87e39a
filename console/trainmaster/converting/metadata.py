"""Converts names, labels and annotations, Kueue's queue, `suspend` and `managedBy`."""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.converting.fields import Draft, Field, Path, Target

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_SCHEDULER: Path = ("spec", "scheduling", "gang", "scheduler")
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_KEPT = ("name", "generateName", "namespace")
_LEFT_OUT = {
    "finalizers": "they belong to a controller of the other operator's job",
    "ownerReferences": "its owner doesn't know the new job",
}
_OTHERS = ("kubeflow.org/", "jobset.sigs.k8s.io/", "jobset.x-k8s.io/")


def convert_metadata(manifest: Field, draft: Draft) -> None:
    """Puts an object's metadata into the job."""
    for name, field in manifest.get("metadata").fields.items():
        if name in _KEPT:
            draft.keep(field, ("metadata", name))
        elif name in ("labels", "annotations"):
            convert_labels(field, name, draft)
        else:
            field.dropped(_LEFT_OUT.get(name, "the API server sets it"))
    for name in ("apiVersion", "kind"):
        manifest.get(name).became(Target((name,)))
    manifest.get("status").dropped("the operator writes it")


def convert_labels(labels: Field, kind: str, draft: Draft) -> None:
    """Puts labels or annotations of an object into the job's metadata."""
    for name, field in labels.fields.items():
        if name == QUEUE_LABEL and kind == "labels":
            draft.keep(field, ("spec", "scheduling", "queue"))
            draft.set(_SCHEDULER, "kueue")
        elif name == _VOLCANO_QUEUE and kind == "annotations":
            draft.keep(field, ("spec", "scheduling", "queue"))
            if draft.at(_SCHEDULER) is None:
                draft.set(_SCHEDULER, "volcano")
        elif name.startswith("kueue.x-k8s.io/"):
            field.refused("Trainmaster's Workload for Kueue doesn't support it; set spec.scheduling.priorityClassName")
        elif name == "kubectl.kubernetes.io/last-applied-configuration":
            field.dropped("kubectl sets it again")
        elif any(part in name for part in _OTHERS):
            field.dropped("it belongs to the other operator")
        else:
            draft.keep(field, ("metadata", kind, name))
    labels.dropped("it is empty")


def waits_for_kueue(draft: Draft) -> bool:
    """Returns whether Kueue decides when the job starts. If so, `suspend` was set only for Kueue."""
    return bool(draft.at(_SCHEDULER) == "kueue")


def settle_gang(leaves: Iterable[Field], draft: Draft) -> None:
    """Refuses other gang schedulers in a job that waits for Kueue."""
    for leaf in leaves if waits_for_kueue(draft) else ():
        if leaf.answer is not None and any(target.path == _SCHEDULER for target in leaf.answer.targets):
            leaf.overruled("Kueue admits the job as a whole, and a job has one gang scheduler; remove one of them")


def convert_suspend(field: Field, draft: Draft) -> None:
    """Puts `suspend` into the job, unless it is set for Kueue."""
    if field.value is True and waits_for_kueue(draft):
        field.dropped("Kueue holds the job by its Workload until it admits it")
    else:
        draft.keep(field, ("spec", "runPolicy", "suspend"))


def convert_manager(field: Field) -> None:
    """Answers `managedBy`, the name of the object's controller."""
    if "multikueue" in str(field.value):
        field.refused("MultiKueue can't dispatch a DistributedTrainingJob; apply it to the cluster that should run it")
    else:
        field.dropped("Trainmaster's operator runs the job")
