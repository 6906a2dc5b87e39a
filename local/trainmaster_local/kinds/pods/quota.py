"""v1 ResourceQuota is enforced when pods are created (kubernetes `plugin/pkg/admission/resourcequota`).

Usage is counted from the objects at the instant of the write, so a quota is never exceeded and needs no bookkeeping.
The quota's status is counted in the same way, whenever the quota itself is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import forbidden
from trainmaster_local.apiserver.resources import Admission
from trainmaster_local.quantities import Quantity, parse, parse_quantity

Json = dict[str, Any]
Usage = dict[str, Fraction]

_SHORT = ("cpu", "memory", "ephemeral-storage")


def pod_usage(pod: Json) -> Usage:
    """Returns a pod's usage: itself, and its containers' requests and limits. An ended pod only counts as an object."""
    usage: Usage = {"count/pods": Fraction(1)}
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return usage
    usage["pods"] = Fraction(1)
    spec = pod["spec"]
    for part in ("requests", "limits"):
        for name, total in _pod_total(spec, part).items():
            usage[f"{part}.{name}"] = total
            if part == "requests" and name in _SHORT:
                usage[name] = total
    return usage


def _pod_total(spec: Json, part: str) -> Usage:
    """Returns the containers' sum, or the largest init container if that is larger; sidecars count as containers."""
    total: Usage = {}
    largest: Usage = {}
    for container in spec.get("containers") or []:
        _add(total, _amounts(container, part))
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            _add(total, _amounts(container, part))
        else:
            for name, value in _amounts(container, part).items():
                largest[name] = max(largest.get(name, Fraction(0)), value)
    return {name: max(total.get(name, Fraction(0)), largest.get(name, Fraction(0))) for name in {*total, *largest}}


def _amounts(container: Json, part: str) -> Usage:
    return {name: parse_quantity(value) for name, value in ((container.get("resources") or {}).get(part) or {}).items()}


def _add(total: Usage, more: Mapping[str, Fraction]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Fraction(0)) + value


def used_of(hard: Iterable[str], pods: Iterable[Json], counts: Mapping[str, int]) -> dict[str, str]:
    """Returns the usage of each resource that a quota limits, as its status shows it.

    `counts` is the number of objects by their counted name (`configmaps`, `count/jobs.batch`).
    """
    total: Usage = {name: Fraction(count) for name, count in counts.items()}
    for pod in pods:
        _add(total, pod_usage(pod))
    return {name: str(Quantity(total.get(name, Fraction(0)), _family(name))) for name in hard}


def _family(resource: str) -> str:
    return "binary" if resource.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage") else "decimal"


def charge(pod: Json, admission: Admission) -> None:
    """Refuses a pod that exceeds one of its namespace's quotas. Raises ApiError 403."""
    quotas = admission.api.peek_all("resourcequotas", admission.namespace)
    if not quotas:
        return
    asked = pod_usage(pod)
    name = pod["metadata"].get("name", "")
    for quota in quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        compute = [key for key in hard if key in _SHORT or key.partition(".")[0] in ("requests", "limits")]
        missing = sorted(key for key in compute if key not in asked and _must_be_given(key))
        if missing:
            problem = f"failed quota: {quota['metadata']['name']}: must specify " + _missing(pod["spec"], missing)
            raise forbidden("", "pods", name, problem)
        counted = [key for key in hard if key in asked]
        used = used_of(counted, admission.api.peek_all("pods", admission.namespace), {})
        exceeded = sorted(key for key in counted if parse_quantity(used[key]) + asked[key] > parse_quantity(hard[key]))
        if exceeded:
            wanted = ",".join(f"{key}={Quantity(asked[key], _family(key))}" for key in exceeded)
            already = ",".join(f"{key}={used[key]}" for key in exceeded)
            limited = ",".join(f"{key}={parse(hard[key])}" for key in exceeded)
            problem = (
                f"exceeded quota: {quota['metadata']['name']}, requested: {wanted}, used: {already}, limited: {limited}"
            )
            raise forbidden("", "pods", name, problem)


def _must_be_given(key: str) -> bool:
    """Returns whether every container must set the resource.

    If a quota limits CPU or memory, it must; a missing extended resource counts as zero.
    """
    return key.rpartition(".")[2] in ("cpu", "memory") and "/" not in key


def _missing(spec: Json, keys: list[str]) -> str:
    names = sorted(container["name"] for container in spec.get("containers") or [])
    return "; ".join(f"{key} for: {','.join(names)}" for key in keys)
