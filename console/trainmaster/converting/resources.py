"""The resources of a container become the job's: accelerators, RDMA devices, CPU and memory; others stay the pod's."""

from __future__ import annotations

import re
from typing import Any

from trainmaster.converting.draft import Draft
from trainmaster.converting.fields import Field, Path, Target
from trainmaster_operator.api.accelerator_names import RESOURCE_NAMES
from trainmaster_operator.api.quantities import quantity

_KINDS = {name: kind for kind, name in RESOURCE_NAMES.items()}
_RESOURCES: Path = ("spec", "resources")
_ACCELERATOR: Path = ("spec", "accelerator")
_RDMA: Path = ("spec", "interconnect", "rdma")
# Device plugins' names of RDMA devices: rdma/hca, openshift.io/mlnx_rdma, vpc.amazonaws.com/efa.
_IS_RDMA = re.compile(r"^rdma/|/.*rdma|/efa$|/hca")
_IS_DEVICE = re.compile(r"/.*(gpu|npu|tpu|xpu|hpu|dcu|mlu|accelerator|ascend|neuron|mig-|gaudi)", re.IGNORECASE)


def is_accelerator(name: str) -> bool:
    """Returns whether an extended resource is one that ranks compute on."""
    return name in _KINDS or (_IS_DEVICE.search(name) is not None and _IS_RDMA.search(name) is None)


def convert_resources(resources: Field, draft: Draft, container: Path) -> None:
    """Puts a container's resources into the job; `container` is the worker's place in podTemplate."""
    names = dict.fromkeys([*resources.named("limits"), *resources.named("requests")])
    for name in names:
        limit, request = resources.get("limits", name), resources.get("requests", name)
        if name == "cpu":
            _cpu(limit, request, draft)
        elif name == "memory":
            _memory(limit, request, draft, container)
        elif _IS_RDMA.search(name) and draft.at(_RDMA) is None and _count(limit or request):
            _device(limit, request, draft, (*_RDMA, "count"))
            draft.set((*_RDMA, "resourceName"), name)
        elif is_accelerator(name) and draft.at((*_RESOURCES, "gpus")) is None and _count(limit or request) is not None:
            _accelerator(name, limit, request, draft)
        else:
            for field, kind in ((limit, "limits"), (request, "requests")):
                if field is not None:
                    draft.keep(field, (*container, "resources", kind, name))
    for name, field in (resources.fields or {}).items():
        if name not in ("limits", "requests"):
            draft.keep(field, (*container, "resources", name))


def _accelerator(name: str, limit: Field | None, request: Field | None, draft: Draft) -> None:
    count = _device(limit, request, draft, (*_RESOURCES, "gpus"))
    if count == 0 or name == RESOURCE_NAMES["nvidia"]:
        return
    if name in _KINDS:
        draft.set((*_ACCELERATOR, "kind"), _KINDS[name])
        return
    kind = next((kind for known, kind in _KINDS.items() if known.partition("/")[0] == name.partition("/")[0]), "custom")
    if kind != "nvidia":
        draft.set((*_ACCELERATOR, "kind"), kind)
    draft.set((*_ACCELERATOR, "resourceName"), name)


def _device(limit: Field | None, request: Field | None, draft: Draft, path: Path) -> int:
    """Puts a number of devices, of which limit and request are the same, and returns it."""
    count = _count(limit or request) or 0
    for field in (limit, request):
        if field is not None:
            draft.keep(field, path, count)
    return count


def _count(field: Field | None) -> int | None:
    """Returns a whole number of devices; None where it is none."""
    value = field.plain() if field is not None else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _cpu(limit: Field | None, request: Field | None, draft: Draft) -> None:
    path = (*_RESOURCES, "cpu")
    if limit is not None and (request is None or _same(limit, request)):
        draft.keep(limit, path, limit.plain())
        if request is not None:
            request.became(Target(path))
        return
    for field, name in ((request, "request"), (limit, "limit")):
        if field is not None:
            draft.keep(field, (*path, name))


def _memory(limit: Field | None, request: Field | None, draft: Draft, container: Path) -> None:
    path = (*_RESOURCES, "memory")
    if limit is not None:
        draft.keep(limit, path)
        if request is not None and _same(limit, request):
            request.became(Target(path))
            return
    if request is not None:
        # The job's field is request and limit in one.
        draft.keep(request, (*container, "resources", "requests", "memory"))


def _same(one: Field, other: Field) -> bool:
    values: list[Any] = [one.plain(), other.plain()]
    try:
        return quantity(values[0]) == quantity(values[1])
    except (ValueError, ArithmeticError):
        return bool(values[0] == values[1])


def shared_memory(limit: Any, draft: Draft) -> Any:
    """Returns the size of /dev/shm for a memory volume with a limit, or none; None where the pod has to say it."""
    memory = draft.at((*_RESOURCES, "memory"))
    try:
        if limit is not None and (memory is None or quantity(limit) <= quantity(memory)):
            return limit
        # What is in the volume counts to the container's memory, so that is the limit that it has.
        return memory if memory is None or quantity(memory) else None
    except (ValueError, ArithmeticError):
        return None
