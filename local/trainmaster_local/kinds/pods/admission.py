"""Adds service account, tolerations and priority to a new pod as kube-apiserver's plugins do, and enforces quota.

The plugins are those of `plugin/pkg/admission`: Priority, DefaultTolerationSeconds, ServiceAccount, ResourceQuota.
"""

from __future__ import annotations

import random
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import forbidden
from trainmaster_local.apiserver.resources import Admission
from trainmaster_local.kinds.pods.defaults import containers_of
from trainmaster_local.kinds.pods.quota import charge

Json = dict[str, Any]

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3607  # an hour and 7 s, by which the plugin distinguishes its default from a user's
_TAINT_SECONDS = 300
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_PRIORITIES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}


def admit_pod(pod: Json, old: Json | None, admission: Admission) -> None:
    """Changes a new pod in place. Raises ApiError 403 if its account or class is missing or a quota is exceeded."""
    if old is not None or admission.subresource:
        return
    _priority(pod, admission)
    _tolerations(pod["spec"])
    _service_account(pod, admission)
    charge(pod, admission)


def _priority(pod: Json, admission: Admission) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    value, policy = 0, "PreemptLowerPriority"
    if name in _PRIORITIES:
        value = _PRIORITIES[name]
    elif name:
        found = admission.api.peek("priorityclasses.scheduling.k8s.io", name)
        if found is None:
            raise forbidden("", "pods", pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
        value, policy = found.get("value", 0), found.get("preemptionPolicy", policy)
    else:
        chosen = [c for c in admission.api.peek_all("priorityclasses.scheduling.k8s.io") if c.get("globalDefault")]
        for candidate in chosen[:1]:
            spec["priorityClassName"] = candidate["metadata"]["name"]
            value, policy = candidate.get("value", 0), candidate.get("preemptionPolicy", policy)
    if "priority" in spec and spec["priority"] != value:
        problem = (
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller "
            "computed {} from the given PriorityClass name"
        )
        raise forbidden("", "pods", pod["metadata"].get("name", ""), problem.format(spec["priority"], value))
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def _tolerations(spec: Json) -> None:
    tolerations = spec.get("tolerations") or []
    for taint in _TAINTS:
        tolerated = any(
            toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in ("", "NoExecute")
            for toleration in tolerations
        )
        if not tolerated:
            added = {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TAINT_SECONDS}
            tolerations = [*tolerations, added]
    spec["tolerations"] = tolerations


def _service_account(pod: Json, admission: Admission) -> None:
    spec = pod["spec"]
    name = spec.get("serviceAccountName") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    account = admission.api.peek("serviceaccounts", name, admission.namespace)
    if account is None:
        if name == "default":
            # The account's controller is a moment late; kube-apiserver waits and retries, then refuses the pod.
            account = {}
        else:
            problem = (
                f'error looking up service account {admission.namespace}/{name}: serviceaccount "{name}" not found'
            )
            raise forbidden("", "pods", pod["metadata"].get("name", ""), problem)
    mount = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
    if mount:
        _mount_token(spec)
    if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = account["imagePullSecrets"]


def _mount_token(spec: Json) -> None:
    waiting = [
        container
        for _, container in containers_of(spec)
        if all(mount.get("mountPath") != TOKEN_PATH for mount in container.get("volumeMounts") or [])
    ]
    existing = next(
        (v["name"] for v in spec.get("volumes") or [] if v.get("name", "").startswith("kube-api-access-")), None
    )
    name = existing or "kube-api-access-" + "".join(random.choices(_SUFFIX_ALPHABET, k=5))
    for container in waiting:
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    if not waiting or existing:
        return
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    projected = {"sources": sources, "defaultMode": 0o644}
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": name, "projected": projected}]
