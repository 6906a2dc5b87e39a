"""Requests all of a job's workers at once from a gang scheduler, by a PodGroup or Kueue's Workload.

Three schedulers define a `PodGroup`, each in its own API group, and pods refer to it in different ways:

- Volcano: an annotation, and `schedulerName: volcano`. github.com/volcano-sh/apis, pkg/apis/scheduling/v1beta1
- the coscheduling plugin: a label. github.com/kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1
- Kubernetes' own scheduler: `spec.schedulingGroup`. scheduling.k8s.io/v1alpha2, which Kubernetes 1.36 serves where the
  feature gate GenericWorkload is on (KEP-4671); 1.37 serves v1alpha3 and v1beta1 in its place

An elastic job's PodGroup requests only the minimum of workers, so scaling doesn't change the PodGroup's reservation.

Kueue: github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2 (since 0.15; the older v1beta1 uses other fields for the
priority class). A pod set is a worker group with its spares. For an elastic job, Kueue may admit fewer pods
(`minCount`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.v1alpha1 import JobSpec

GangScheduler = Literal["volcano", "coscheduling", "kubernetes", "kueue"]


@dataclass(frozen=True)
class GangAPI:
    """GangAPI is the API of a gang scheduler's object."""

    product: str
    group: str
    version: str
    plural: str
    kind: str
    # Later API versions, which accept the same values in the fields that we use.
    later: tuple[str, ...] = ()

    @property
    def child_kind(self) -> str:
        """Returns the kind in the form of `manifest.child_kind`."""
        return f"{self.kind}.{self.group}"


GANG_APIS: Mapping[str, GangAPI] = {
    "volcano": GangAPI("Volcano", "scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    "coscheduling": GangAPI("the coscheduling plugin", "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
    "kubernetes": GangAPI(
        "Kubernetes 1.36 or newer with the feature gate GenericWorkload",
        "scheduling.k8s.io",
        "v1alpha2",
        "podgroups",
        "PodGroup",
        later=("v1alpha3", "v1beta1"),
    ),
    "kueue": GangAPI("Kueue 0.15 or newer", "kueue.x-k8s.io", "v1beta2", "workloads", "Workload"),
}


def scheduler_of(spec: JobSpec) -> GangScheduler | None:
    """Returns the job's gang scheduler, or None."""
    return None if spec.scheduling.gang is None else spec.scheduling.gang.scheduler


def pod_group_kind(spec: JobSpec) -> str | None:
    """Returns the kind of the job's PodGroup, or None if its scheduler uses none."""
    scheduler = scheduler_of(spec)
    return None if scheduler is None or scheduler == "kueue" else GANG_APIS[scheduler].child_kind


def pod_group_values(spec: JobSpec, groups: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns the values for the PodGroup's template. `groups` contains each group's number of workers and PodSpec."""
    counted = [(spec.elastic.min_workers if spec.elastic is not None else count, pod) for count, pod in groups]
    total: dict[str, Decimal] = {}
    for count, pod in counted:
        _add(total, {name: amount * count for name, amount in pod_requests(pod).items()})
    resources = {name: _text(name, amount) for name, amount in sorted(total.items()) if amount}
    return {"min_member": sum(count for count, _ in counted), "min_resources": resources}


def pod_requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """Returns a pod's requests: the sum of its containers, or its largest init container if that requests more.

    Invalid quantities are ignored, because the API server refuses them with its own message.
    """
    total: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    for container in pod.get("containers") or []:
        _add(total, _requests(container))
    for container in pod.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
            _add(total, requests)
            continue
        for name, amount in requests.items():
            total[name] = max(total.get(name, Decimal(0)), amount + sidecars.get(name, Decimal(0)))
    return total


def _requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    found: dict[str, Decimal] = {}
    for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
        try:
            found[name] = quantity(amount)
        except (ValueError, KeyError, ArithmeticError):
            continue
    return found


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _text(name: str, amount: Decimal) -> str:
    """Returns a readable amount of a resource, such as 512Gi, 64 or 1500m."""
    if amount != amount.to_integral_value():
        return f"{int((amount * 1000).to_integral_value(rounding='ROUND_CEILING'))}m"
    whole = int(amount)
    if not name.startswith(("memory", "ephemeral-storage", "hugepages-")):
        return str(whole)
    for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if whole >= 1024**power and whole % 1024**power == 0:
            return f"{whole // 1024**power}{suffix}"
    return str(whole)


# Kueue computes quota and flavors from these fields of a PodSpec. The others are left out, because they may differ
# between versions of the operator, and a Workload with quota can't be changed.
_POD_FIELDS = ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "overhead", "restartPolicy")
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")


def workload_pod_sets(spec: JobSpec, groups: Iterable[tuple[str, int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the Workload's pod sets. `groups` contains each group's name, number of pods and PodSpec."""
    least = spec.elastic.min_workers + (spec.spares or 0) if spec.elastic is not None else None
    return [
        {
            "name": name,
            "count": count,
            "min_count": least if least is not None and least < count else None,
            "pod": _reduced(pod),
        }
        for name, count, pod in groups
    ]


def _reduced(pod: Mapping[str, Any]) -> dict[str, Any]:
    reduced = {name: pod[name] for name in _POD_FIELDS if pod.get(name)}
    affinity = (pod.get("affinity") or {}).get("nodeAffinity")
    if affinity:
        reduced["affinity"] = {"nodeAffinity": affinity}
    for field in ("initContainers", "containers"):
        if pod.get(field):
            reduced[field] = [
                {name: container[name] for name in _CONTAINER_FIELDS if name in container} for container in pod[field]
            ]
    return reduced
