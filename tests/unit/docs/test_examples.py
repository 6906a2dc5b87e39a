"""The examples for a first try fit the smallest common machine, beside the programs that already run there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.parsing import parse_job
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import Settings, first_assignment, render

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "manifests" / "examples"
NEEDS_ACCELERATORS = {"ascend", "bert-mrpc"}
FIRST = sorted({path.stem for path in EXAMPLES.glob("*.yaml")} - NEEDS_ACCELERATORS)
# The machine is one node with two cores and 4 GiB. A single-node kubeadm or kind reserves: API server 250m, controllers
# 200m, scheduler 100m, etcd 100m and 100Mi, two CoreDNS of 100m and 70Mi, the network's pod 100m and 50Mi. The kubelet
# evicts pods below 100Mi of free memory.
ROOM = {"cpu": Decimal(2) - quantity("950m"), "memory": quantity("4Gi") - quantity("290Mi") - quantity("100Mi")}


def requests(pod: Mapping[str, Any], resource: str) -> Decimal:
    """Returns a pod's requests as the scheduler counts them: all its containers, or its largest init container."""

    def of(container: Mapping[str, Any]) -> Decimal:
        asked = container.get("resources", {})
        return quantity(asked.get("requests", {}).get(resource, asked.get("limits", {}).get(resource, "0")))

    together = sum((of(container) for container in pod["containers"]), Decimal(0))
    return max([together, *(of(container) for container in pod.get("initContainers", []))])


def total(bodies: Iterable[Mapping[str, Any]], resource: str) -> Decimal:
    """Returns the sum of the requests of all pods of StatefulSets and Deployments."""
    workloads = [body for body in bodies if body["kind"] in ("StatefulSet", "Deployment")]
    return sum(
        (body["spec"]["replicas"] * requests(body["spec"]["template"]["spec"], resource) for body in workloads),
        Decimal(0),
    )


def job(example: str) -> dict[str, Any]:
    """Returns the job of an example's file."""
    documents = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text())
    [found] = [document for document in documents if document["kind"] == "DistributedTrainingJob"]
    return dict(found)


@pytest.mark.parametrize("resource", sorted(ROOM))
@pytest.mark.parametrize("example", FIRST)
def test_an_example_fits_a_small_node_beside_the_operator(example: str, resource: str) -> None:
    parsed = parse_job(job(example))
    identity = JobIdentity("default", parsed.name, "00000000-0000-0000-0000-000000000000")
    pods = render(identity, parsed.spec, first_assignment(identity, parsed.spec), settings=Settings())
    operator = list(yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()))
    assert total(operator, resource) > 0
    assert total((each.body for each in pods), resource) + total(operator, resource) <= ROOM[resource]


@pytest.mark.parametrize("example", FIRST)
def test_an_example_may_use_a_whole_core_where_one_is_free(example: str) -> None:
    assert quantity(job(example)["spec"]["resources"]["cpu"]["limit"]) >= 1
