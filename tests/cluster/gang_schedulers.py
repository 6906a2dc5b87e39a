"""Gang schedulers as far as a job sees them: minimal CRDs, with the fields of theirs that matter, and their acts.

The fields are those of github.com/volcano-sh/apis (scheduling/v1beta1); unknown ones would be pruned, so what a test
finds in the API server fits the real CRD.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.conftest import Cluster

STRING: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer", "format": "int32"}
QUANTITIES: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
}
ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

POD_GROUP = {"minMember": WHOLE, "minResources": QUANTITIES, "queue": STRING, "priorityClassName": STRING}


def definition(group: str, version: str, kind: str, spec: dict[str, Any], **schema: Any) -> dict[str, Any]:
    """A CustomResourceDefinition with a status subresource."""
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
    """The types are served meanwhile."""
    cluster.apply(*definitions)
    names = [f"crd/{one['metadata']['name']}" for one in definitions]
    try:
        cluster.kubectl("wait", "--for=condition=Established", *names, "--timeout=20s")
        yield
    finally:
        cluster.kubectl("delete", *names, "--timeout=30s")


def bind(cluster: Cluster, pod: dict[str, Any], node: str) -> None:
    """What a scheduler does at the end."""
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
