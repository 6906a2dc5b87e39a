"""Checks requests and limits of a pod's containers, together with those of the job's own fields.

The names of accelerators come from their device plugins: NVIDIA/k8s-device-plugin, ROCm/k8s-device-plugin,
intel/intel-device-plugins and Ascend/ascend-device-plugin. Intel's `i915` is the driver of the Data Center GPUs. For
the newer driver, set `accelerator.resourceName: gpu.intel.com/xe`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from trainmaster_operator.api.kubernetes_syntax import keyed, quantity, quantity_problem
from trainmaster_operator.api.problems import Problem, did_you_mean
from trainmaster_operator.api.v1alpha1 import CPU, Accelerator, JobSpec, Resources
from trainmaster_operator.api.values import show
from trainmaster_operator.wire.values import mapping

STANDARD = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"
# Minimum bytes of memory. Kubernetes accepts less with a warning, but smaller amounts come from a wrong suffix.
_LEAST_MEMORY = 1024


# Requests and limits for each kind of worker.
Amounts = Sequence[tuple[Mapping[str, str], Mapping[str, str]]]


def requests_and_limits(resources: Resources) -> tuple[dict[str, str], dict[str, str]]:
    """Returns requests and limits of the worker's container, without devices."""
    cpu, memory = resources.cpu, resources.memory
    request, limit = (cpu.request, cpu.limit) if isinstance(cpu, CPU) else (cpu, cpu)
    return _texts(cpu=request, memory=memory), _texts(cpu=limit, memory=memory)


def _texts(**amounts: int | str | None) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def check_resources(path: str, given: Any, worker: Amounts) -> Iterator[Problem]:
    """Yields problems with a container's requests and limits, together with those of the job's own fields."""
    own = {kind: _amounts(mapping(given).get(kind)) for kind in ("requests", "limits")}
    for kind, amounts in own.items():
        for name, value in amounts.items():
            if (message := _wrong(name, value)) is not None:
                yield Problem(keyed(f"{path}.{kind}", name), value, message)
    for name in {**own["requests"], **own["limits"]}:
        yield from _compare(path, name, own, worker)


def _compare(path: str, name: str, own: Mapping[str, Mapping[str, Any]], worker: Amounts) -> Iterator[Problem]:
    for requests, limits in worker:
        request = own["requests"].get(name, requests.get(name))
        limit = own["limits"].get(name, limits.get(name))
        if limit is None and request is not None and _is_device(name) and name in own["requests"]:
            yield Problem(keyed(f"{path}.requests", name), request, "is requested without a limit; set an equal limit")
            return
        asked, most = _number(request), _number(limit)
        if asked is None or most is None:
            continue
        if asked != most and _is_device(name):
            message = f"{request} is not the limit, {limit}; both must be equal for devices"
            yield Problem(keyed(f"{path}.requests", name), request, message)
            return
        if asked > most:
            kind = "requests" if name in own["requests"] else "limits"
            source = "" if name in own["requests"] and name in own["limits"] else f" of spec.resources.{name}"
            message = f"{request} is more than the limit{source}, {limit}; use at most that"
            if kind == "limits":
                message = f"{limit} is less than the request{source}, {request}; use at least that"
            yield Problem(keyed(f"{path}.{kind}", name), own[kind][name], message)
            return


def _wrong(name: str, value: Any) -> str | None:
    number = _number(value)
    if "/" not in name and name not in STANDARD and not name.startswith(_HUGE_PAGES):
        remedy = did_you_mean(name, STANDARD, "use cpu, memory or a device's full name, such as nvidia.com/gpu")
        return f"{show(name)} is not a resource; {remedy}"
    if number is not None and number < 0:
        return f"{show(value)} is negative; use 0 or more"
    if name == "memory" and number is not None and number < _LEAST_MEMORY and str(value).endswith("m"):
        return f"{show(value)} is thousandths of a byte; use {value[:-1]}M or {value[:-1]}Mi"
    if number is not None and name.startswith(_HUGE_PAGES):
        page = _number(name.removeprefix(_HUGE_PAGES))
        if page and number % page:
            return f"{show(value)} is not a multiple of {name.removeprefix(_HUGE_PAGES)}; use whole pages"
    if number is not None and _is_device(name) and number != number.to_integral_value():
        return f"{show(value)} is not a whole number of devices; use one"
    return None


def _amounts(given: Any) -> dict[str, Any]:
    known = ((str(name), value) for name, value in mapping(given).items() if value is not None)
    return {name: value for name, value in known if not name.startswith("$")}


def _is_device(name: str) -> bool:
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _number(value: Any) -> Decimal | None:
    """Returns a quantity's value, or None if it is invalid, which another check reports."""
    if value is None or quantity_problem(value) is not None:
        return None
    try:
        return quantity(value)
    except (ValueError, KeyError, ArithmeticError):
        return None


RESOURCE_NAMES: Mapping[str, str] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
    "ascend": "huawei.com/Ascend910",
}


def resource_name(accelerator: Accelerator) -> str:
    """Returns the extended resource that `gpus` counts. Parsing refuses a custom kind without a resource name."""
    return accelerator.resource_name or RESOURCE_NAMES.get(accelerator.kind, "")


def device_names(spec: JobSpec) -> frozenset[str]:
    """Returns the extended resources that the job's own fields request."""
    accelerators = [spec.accelerator, *(group.accelerator or spec.accelerator for group in spec.worker_groups or [])]
    names = {resource_name(accelerator) for accelerator in accelerators}
    if spec.interconnect.rdma is not None:
        names.add(spec.interconnect.rdma.resource_name)
    return frozenset(names)
