"""What a JobSet has beside its training stays Kubernetes' own: Jobs of other programs, and claims for volumes.

A driver, a data server or what prepares a dataset is no worker; it becomes a Job (batch/v1) as the JobSet controller
would have made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.converting.draft import POD, Draft, at, put
from trainmaster.converting.fields import Field, Target

ORDER = "nothing waits for another job; apply them in this order, with kubectl wait between them"


def make_jobs(replicated: Field, owner: str, namespace: str, draft: Draft) -> None:
    """Makes the Jobs of a replicatedJob that isn't the one that trains."""
    name = replicated.text("name")
    count = replicated.whole("replicas")
    template = replicated.get("template", "spec")
    documents = []
    if not name or f"Job {owner}-{name}-0" in draft.beside:
        replicated.refused("a replicatedJob has a name of its own; give it one")
        return
    for number in range(min(1 if count is None else count, 100)):
        document = f"Job {owner}-{name}-{number}"
        body = _object("batch/v1", "Job", f"{owner}-{name}-{number}", namespace, template)
        # A Job has no default for it, the JobSet controller had.
        pod = at(body, ("spec", "template", "spec"))
        if isinstance(pod, dict):
            pod.setdefault("restartPolicy", "OnFailure")
        draft.beside[document] = body
        documents.append(document)
    for each in replicated.each("dependsOn"):
        each.refused(ORDER)
    if not documents:
        replicated.dropped("it has no replicas")
        return
    if template is not None:
        template.kept(Target(("spec",), documents[0]))
    for part in ("name", "replicas"):
        field = replicated.get(part)
        if field is not None:
            field.became(*(Target(("metadata", "name"), document) for document in documents))
    metadata_field = replicated.get("template", "metadata")
    if metadata_field is not None:
        metadata_field.dropped("the Job is made by hand, and its labels were the other operator's")
    group = replicated.get("groupName")
    if group is not None:
        group.dropped("nobody asks for it")


def make_claims(policies: list[Field], owner: str, namespace: str, draft: Draft) -> None:
    """Makes the claims that a JobSet would have, and mounts them where its containers name their volumes."""
    for policy in policies:
        retention = policy.get("retentionPolicy")
        if retention is not None:
            retention.dropped("the claim is made by itself: it stays until you delete it")
        for template in policy.each("templates"):
            _claim(template, owner, namespace, draft)


def _claim(template: Field, owner: str, namespace: str, draft: Draft) -> None:
    volume = template.text("metadata", "name")
    name = f"{volume}-{owner}"
    document = f"PersistentVolumeClaim {name}"
    spec = template.get("spec")
    body = _object("v1", "PersistentVolumeClaim", name, namespace, spec)
    if spec is not None:
        spec.kept(Target(("spec",), document))
    for part, field in template.named("metadata").items():
        if part == "name":
            field.became(Target(("metadata", "name"), document))
        elif part in ("labels", "annotations"):
            put(body, ("metadata", part), field.plain())
            field.kept(Target(("metadata", part), document))
    template.dropped("the claim is made by itself, and the API server writes the rest")
    draft.beside = {document: body, **draft.beside}
    mounted = {"name": volume, "persistentVolumeClaim": {"claimName": name}}
    pods = [(draft.job, POD)]
    pods += [(each, ("spec", "template", "spec")) for each in draft.beside.values() if each["kind"] == "Job"]
    for root, pod in pods:
        if _mounts(at(root, pod), volume):
            put(root, (*pod, "volumes", len(at(root, (*pod, "volumes")) or [])), mounted)


def _object(api_version: str, kind: str, name: str, namespace: str, spec: Field | None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return {**body, "spec": spec.plain() if spec is not None else {}}


def _mounts(pod: Any, volume: str) -> bool:
    """Returns whether a container of a pod mounts a volume that the pod itself doesn't have."""
    if not isinstance(pod, Mapping):
        return False
    mounts = [
        mount
        for kind in ("containers", "initContainers")
        for container in _mappings(pod.get(kind))
        for mount in _mappings(container.get("volumeMounts"))
    ]
    return any(mount.get("name") == volume for mount in mounts) and not any(
        each.get("name") == volume for each in _mappings(pod.get("volumes"))
    )


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
