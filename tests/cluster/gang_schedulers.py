"""Gang schedulers are simulated as a job sees them: minimal CRDs, with the fields that matter, and their actions.

The fields are those of github.com/volcano-sh/apis (scheduling/v1beta1). The API server would prune unknown ones, so
everything that a test finds there fits the real CRD.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainmaster_local.testing.clusters import Cluster

STRING: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer", "format": "int32"}
QUANTITIES: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
}
ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

POD_GROUP = {"minMember": WHOLE, "minResources": QUANTITIES, "queue": STRING, "priorityClassName": STRING}


def definition(group: str, version: str, kind: str, spec: dict[str, Any], **schema: Any) -> dict[str, Any]:
    """Returns a CustomResourceDefinition with a status subresource."""
    plural = f"{kind.lower()}s"
    properties = {"spec": {"type": "object", "properties": spec}, "status": schema.get("status", ANYTHING)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://example.com/made-for-a-test"},
        },
        "spec": {
            "group": group,
            "scope": schema.get("scope", "Namespaced"),
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                }
            ],
        },
    }


VOLCANO = definition("scheduling.volcano.sh", "v1beta1", "PodGroup", POD_GROUP)


@contextmanager
def installed(cluster: Cluster, *definitions: dict[str, Any]) -> Iterator[None]:
    """Serves the types during the block."""
    cluster.apply(*definitions)
    names = [f"crd/{one['metadata']['name']}" for one in definitions]
    try:
        cluster.kubectl("wait", "--for=condition=Established", *names, "--timeout=60s")
        yield
    finally:
        cluster.kubectl("delete", *names, "--timeout=60s")


def bind(cluster: Cluster, pod: dict[str, Any], node: str) -> None:
    """Binds a pod, as a scheduler does in the end."""
    metadata = pod["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": metadata["name"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
    status, answer = cluster.request("POST", path, body)
    assert status == 201, answer


CONDITIONS: dict[str, Any] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": STRING,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "minLength": 1},
            "message": STRING,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    },
}
# github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2/workload_types.go
POD_SET: dict[str, Any] = {
    "type": "object",
    "required": ["template"],
    "properties": {
        "name": STRING,
        "count": {**WHOLE, "minimum": 0},
        "minCount": {**WHOLE, "minimum": 1},
        "template": ANYTHING,
    },
}
WORKLOAD = definition(
    "kueue.x-k8s.io",
    "v1beta2",
    "Workload",
    {
        "queueName": STRING,
        "priority": WHOLE,
        "priorityClassRef": {"type": "object", "properties": {"group": STRING, "kind": STRING, "name": STRING}},
        "active": {"type": "boolean", "default": True},
        "podSets": {
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {**POD_SET, "required": ["name", "template"]},
        },
    },
    status={
        "type": "object",
        "properties": {
            "conditions": CONDITIONS,
            "admission": ANYTHING,
            "admissionChecks": {"type": "array", "items": ANYTHING},
        },
    },
)
FLAVOR = definition(
    "kueue.x-k8s.io",
    "v1beta2",
    "ResourceFlavor",
    {
        "nodeLabels": {"type": "object", "additionalProperties": STRING},
        "tolerations": {"type": "array", "items": ANYTHING},
    },
    scope="Cluster",
)
KUEUE = (WORKLOAD, FLAVOR)
NOW = "2026-11-21T04:00:00Z"


def patch(cluster: Cluster, name: str, manager: str, admission: dict[str, Any], **conditions: tuple[bool, str]) -> None:
    """Writes a Workload's status as one of Kueue's field managers does: all of its conditions, and an admission."""
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{cluster.namespace}/workloads/{name}/status"
    made = [
        {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": f"{kind}: {reason}",
            "lastTransitionTime": NOW,
        }
        for kind, (holds, reason) in conditions.items()
    ]
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name},
        "status": {"conditions": made, **({"admission": admission} if admission else {})},
    }
    query = f"?fieldManager={manager}&force=true"
    status, answer = cluster.request("PATCH", path + query, body, "application/apply-patch+yaml")
    assert status == 200, answer


def admit(cluster: Cluster, name: str, count: int, flavor: str) -> None:
    """Admits a Workload of one pod set, as Kueue does."""
    assignment = {"name": "worker", "count": count, "flavors": {"nvidia.com/gpu": flavor}}
    admission = {"clusterQueue": "cluster", "podSetAssignments": [assignment]}
    admitted, evicted = (True, "Admitted"), (False, "QuotaReserved")
    patch(cluster, name, "kueue-admission", admission, QuotaReserved=admitted, Admitted=admitted, Evicted=evicted)


def evict(cluster: Cluster, name: str, reason: str) -> None:
    """Takes the quota back, as Kueue does, and waits until the job has stopped."""
    patch(cluster, name, "kueue-eviction", {}, Evicted=(True, reason))
