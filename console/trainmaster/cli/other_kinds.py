"""A document that is no DistributedTrainingJob is named as what it is, so that nobody takes it for a job that is right.

What stands beside a job (a ConfigMap, a claim, another operator's job) is skipped. A file that has no job of ours is a
mistake, and another operator's job in it is pointed to `convert` and the page for those who come from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmaster.cli.program import called
from trainmaster.converting import can_convert
from trainmaster_operator.api.problems import VERY_SIMILAR, nearest
from trainmaster_operator.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR

# The page that names the fields of other operators' jobs one by one.
_PAGE = "docs/migrating.md"


class OtherJob(NamedTuple):
    """OtherJob is what apiVersion and kind say of a job that another operator runs."""

    # What the apiVersion begins with.
    group: str
    # Any kind where it is empty.
    kind: str
    owner: str
    # Of the page.
    section: str


# The first that fits counts.
OTHER_JOBS = (
    OtherJob("trainer.kubeflow.org/", "", "Kubeflow Trainer", "from-trainjob"),
    OtherJob("kubeflow.org/v2beta1", "MPIJob", "the MPI operator", "from-mpijob"),
    OtherJob("kubeflow.org/", "MPIJob", "Kubeflow's training operator", "from-mpijob"),
    OtherJob("kubeflow.org/", "PyTorchJob", "Kubeflow's training operator", "from-pytorchjob"),
    OtherJob("kubeflow.org/", "", "Kubeflow's training operator", "from-others"),
    OtherJob("jobset.x-k8s.io/", "JobSet", "the JobSet controller", "from-jobset"),
    OtherJob("batch.volcano.sh/", "Job", "Volcano", "from-volcanos-job"),
    OtherJob("leaderworkerset.x-k8s.io/", "LeaderWorkerSet", "the LeaderWorkerSet controller", "from-leaderworkerset"),
    OtherJob("ray.io/", "", "KubeRay", "from-rayjob"),
    OtherJob("elastic.iml.github.io/", "ElasticJob", "DLRover", "from-others"),
    OtherJob("training.kubedl.io/", "", "KubeDL", "from-others"),
    OtherJob("batch/", "Job", "Kubernetes", "from-a-kubernetes-job"),
)
# A file with one of these and without a kind is rather a job than a chart's values.
_JOBS_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec"})


def is_job(value: Mapping[str, Any]) -> bool:
    """Returns whether it is meant as a job: kind or group is enough, so that a misspelled one is no other document."""
    kind, version = value.get("kind"), str(value.get("apiVersion") or "")
    if kind == KIND or version == GROUP or version.startswith(f"{GROUP}/"):
        return True
    if isinstance(kind, str) and (
        kind.lower() in (PLURAL, SINGULAR, SHORT_NAME) or nearest(kind, [KIND], VERY_SIMILAR) is not None
    ):
        return True
    # Half a job, of which nothing says that it is something else.
    return kind is None and version == "" and "spec" in value


def items_of(value: Mapping[str, Any]) -> list[Any] | None:
    """Returns what a list has, as `kubectl get -o yaml` prints it; None for what is no list."""
    kind, items = value.get("kind"), value.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        return None
    if kind != f"{KIND}List":
        return items
    # Only a list that names its items' type can leave it out of them.
    types = {"apiVersion": value.get("apiVersion"), "kind": KIND}
    return [{**types, **item} if isinstance(item, Mapping) else item for item in items]


def mistake_of(value: Any) -> str | None:
    """Returns what is wrong with a document that isn't meant as a job; None for what may stand beside one."""
    if not isinstance(value, Mapping):
        return "not an object; give a mapping with apiVersion and kind"
    kind, version = value.get("kind"), value.get("apiVersion")
    if kind == "List" or (isinstance(kind, str) and kind.endswith("List") and "items" in value):
        if isinstance(value.get("items"), list):
            return f"kubectl opens no {kind} in a list; move its items out of it"
        return "items: is not a list; give the objects one a line after '-'"
    for field, given, right in (("apiVersion", version, "v1"), ("kind", kind, "ConfigMap")):
        if given is not None and not isinstance(given, str):
            return f"{field}: is not text; write it in quotes"
        if not given and _JOBS_FIELDS & set(value):
            return f"{field}: is missing; set it, such as {right}"
    if not kind:
        return f"has neither apiVersion nor kind; a job begins with apiVersion: {API_VERSION} and kind: {KIND}"
    other = other_job(value)
    if other is not None:
        converted = f"{called()} convert makes one of ours of it, and " if can_convert(value) else ""
        return (
            f"{kind} is a job of {other.owner}, which Trainmaster doesn't run; {converted}{_PAGE}#{other.section} says "
            "what its fields are called here"
        )
    return None


def other_job(value: Mapping[str, Any]) -> OtherJob | None:
    """Returns what a document is, where it is another operator's job."""
    kind, version = str(value.get("kind")), str(value.get("apiVersion"))
    return next((job for job in OTHER_JOBS if version.startswith(job.group) and job.kind in ("", kind)), None)
