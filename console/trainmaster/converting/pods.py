"""Converts a pod template into the job's image, command and resources, and puts the other fields into podTemplate.

The training container becomes `worker`. Accelerators, RDMA devices, CPU and memory become fields of the job. Fields
that the agent needs for itself are refused or dropped, each with a reason.
"""

from __future__ import annotations

import re
from typing import Any

from trainmaster.converting.commands import convert_program
from trainmaster.converting.fields import MISSING, POD, Draft, Field, Path, Target
from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.api.pod_schema.resources import RESOURCE_NAMES
from trainmaster_operator.api.pod_template import (
    RESERVED_DOMAIN,
    RESERVED_LABELS,
    RESERVED_VARIABLE_PREFIXES,
    RESERVED_VARIABLES,
)
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.values import decimal

_OWN_DOMAINS = re.compile(r"(^|[.])(kubeflow\.org|jobset\.sigs\.k8s\.io|jobset\.x-k8s\.io)/|^batch\.kubernetes\.io/")
# The names of Volcano's scheduler and of the coscheduling plugin's scheduler (in its chart).
_GANGS = {"volcano": "volcano", "scheduler-plugins-scheduler": "coscheduling"}
_TOPOLOGIES = {
    "kueue.x-k8s.io/podset-required-topology": True,
    "kueue.x-k8s.io/podset-preferred-topology": False,
}
# Labels that programs for other operators read. Our labels have other names.
_JOB_NAMES = ("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name")
_INDEXES = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
_METADATA = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
# Fields that the job's own fields replace.
_MOVED: dict[str, Path] = {
    "hostNetwork": ("spec", "interconnect", "hostNetwork"),
    "priorityClassName": ("spec", "scheduling", "priorityClassName"),
}
_NAMES = ("hostname", "subdomain", "setHostnameAsFQDN")
_RESTARTS = "the group restarts in its pods; failurePolicy says how often"
_LEFT_OUT = {
    **dict.fromkeys(_NAMES, "the workers find each other by the names that they have"),
    "restartPolicy": _RESTARTS,
}
_CONTAINERS_LEFT_OUT = {
    **dict.fromkeys(("terminationMessagePath", "terminationMessagePolicy"), "the agent reports there"),
    **dict.fromkeys(("restartPolicy", "restartPolicyRules"), _RESTARTS),
}


def convert_pod(template: Field, draft: Draft, trains: str, *, torch: bool) -> None:
    """Puts a pod template into the job.

    `trains` is the usual name of the training container. `torch` means that the source's operator is for PyTorch,
    so a Python script uses torch.
    """
    _metadata(template, draft)
    spec = template.get("spec")
    containers = spec.get("containers")
    container = containers.item("name", trains) or next(iter(containers.items), MISSING)
    # The worker is converted first, because volumes and sidecars depend on it.
    _worker(container, spec, draft, torch=torch)
    for name, field in spec.fields.items():
        if name == "containers":
            _sidecars(spec, container, draft)
        elif name == "volumes":
            _items(field, (*POD, name), draft)
        elif name == "schedulerName" and field.text() in _GANGS:
            draft.keep(field, ("spec", "scheduling", "gang", "scheduler"), _GANGS[str(field.value)])
        elif name == "schedulingGroup":
            draft.keep(field, ("spec", "scheduling", "gang", "scheduler"), "kubernetes", remark="its PodGroup is made")
        elif name == "activeDeadlineSeconds":
            field.refused("a pod ends with its job; set spec.runPolicy.activeDeadlineSeconds")
        elif name == "terminationGracePeriodSeconds" and field.value == 0:
            draft.keep(field, (*POD, name), 1, remark="the least, in which ranks save")
        elif name in _LEFT_OUT:
            field.dropped(_LEFT_OUT[name])
        else:
            draft.keep(field, _MOVED.get(name, (*POD, name)))


def _metadata(template: Field, draft: Draft) -> None:
    metadata = template.get("metadata")
    for kind in ("labels", "annotations"):
        for name, field in metadata.get(kind).fields.items():
            if kind == "annotations" and name in _TOPOLOGIES and isinstance(field.value, str):
                topology: Path = ("spec", "scheduling", "topology")
                draft.keep(field, (*topology, "key"), field.value)
                draft.set((*topology, "required"), _TOPOLOGIES[name])
            elif name in RESERVED_LABELS or name.startswith(RESERVED_DOMAIN):
                field.dropped("Trainmaster sets it")
            elif _OWN_DOMAINS.search(name):
                field.dropped("it belongs to the other operator")
            else:
                draft.keep(field, ("spec", "podTemplate", "metadata", kind, name))
    metadata.dropped("pods are named and numbered by the job")


def _worker(container: Field, spec: Field, draft: Draft, *, torch: bool) -> None:
    place: Path = (*POD, "containers", 0)
    convert_resources(container.get("resources"), draft, place)
    _shared_memory(container, spec, draft)
    convert_program(container, draft, torch=torch)
    for name, field in container.fields.items():
        if name in ("image", "imagePullPolicy"):
            draft.keep(field, ("spec", name))
        elif name == "env":
            _environment(field, draft, (*place, name))
        elif name == "volumeMounts":
            _items(field, (*place, name), draft)
        elif name in _CONTAINERS_LEFT_OUT:
            field.dropped(_CONTAINERS_LEFT_OUT[name])
        elif name == "securityContext":
            draft.keep(field, (*place, name))
            if field.get("privileged") and not field.get("allowPrivilegeEscalation"):
                # This is Kubernetes' default for privileged containers, but the rendered worker has another default.
                draft.set((*place, name, "allowPrivilegeEscalation"), draft.at((*place, name, "privileged")))
        elif name not in ("name", "command", "args", "resources"):
            draft.keep(field, (*place, name))
    if rest := draft.at(place):
        draft.set((*POD, "containers"), [{"name": WORKER_CONTAINER, **rest}])
        container.get("name").became(Target((*place, "name")))
    container.get("name").dropped(f"the container that trains is called {WORKER_CONTAINER}")


def _sidecars(spec: Field, worker: Field, draft: Draft) -> None:
    for each in spec.get("containers").items:
        if each is not worker and each.text("name") == WORKER_CONTAINER:
            each.refused(f"{WORKER_CONTAINER} is the name of the container that trains; give this one another name")
        elif each is not worker:
            draft.append(each, (*POD, "containers"))


def _environment(field: Field, draft: Draft, place: Path) -> None:
    if field.is_leaf:
        draft.keep(field, place)
    for each in field.items:
        name = each.text("name")
        if name in RESERVED_VARIABLES or name.startswith(RESERVED_VARIABLE_PREFIXES):
            each.dropped("Trainmaster sets it for each attempt")
        else:
            _variable(each, draft, (*place, len(draft.at(place) or [])))


def _variable(variable: Field, draft: Draft, place: Path) -> None:
    """Puts a variable into the job. A variable that reads another operator's label then reads our label instead."""
    path = variable.get("valueFrom", "fieldRef", "fieldPath")
    found = _METADATA.fullmatch(path.text())
    if found is not None and found[2] in (*_JOB_NAMES, *_INDEXES):
        label = POD_INDEX_LABEL if found[2] in _INDEXES else JOB_NAME_LABEL
        path.became(Target((*place, "valueFrom", "fieldRef", "fieldPath")))
        draft.keep(variable, place)
        draft.set((*place, "valueFrom", "fieldRef", "fieldPath"), f"metadata.labels['{label}']")
    elif found is not None and _OWN_DOMAINS.search(found[2]):
        variable.refused(
            "no pod of Trainmaster's has this label; use NODE_RANK, NNODES, RANK and WORLD_SIZE, which are set"
        )
    else:
        draft.keep(variable, place)


def _shared_memory(container: Field, spec: Field, draft: Draft) -> None:
    """Converts a memory volume at /dev/shm into sharedMemory, unless it is also mounted elsewhere."""
    mount = next(
        (each for each in container.get("volumeMounts").items if each.text("mountPath") == "/dev/shm"), MISSING
    )
    name = mount.text("name")
    volume = spec.get("volumes").item("name", name)
    mounts = [
        each
        for kind in ("containers", "initContainers")
        for other in spec.get(kind).items
        for each in other.get("volumeMounts").items
        if each.text("name") == name
    ]
    if not mount or volume.text("emptyDir", "medium") != "Memory" or len(mounts) != 1:
        return
    limit = volume.get("emptyDir", "sizeLimit").plain()
    size = shared_memory(limit, draft)
    path: Path = ("spec", "resources", "sharedMemory")
    if size is not None:
        remark = "" if limit == size else "the container's memory is its limit"
        draft.keep(volume, path, size, remark=remark)
        mount.became(Target(path))
    elif draft.at(("spec", "resources", "gpus")):
        for field in (volume, mount):
            field.dropped("where there are GPUs, /dev/shm has 8Gi; spec.resources.sharedMemory is another size")


def _items(field: Field, place: Path, draft: Draft) -> None:
    """Puts a list's items into the job, except for items that already have an answer."""
    if field.is_leaf:
        draft.keep(field, place)
    for each in field.items:
        if not each.is_answered:
            draft.append(each, place)


_KINDS = {name: kind for kind, name in RESOURCE_NAMES.items()}
_RESOURCES: Path = ("spec", "resources")
_ACCELERATOR: Path = ("spec", "accelerator")
_RDMA: Path = ("spec", "interconnect", "rdma")
# Matches device plugins' names for RDMA devices: rdma/hca, openshift.io/mlnx_rdma, vpc.amazonaws.com/efa.
_IS_RDMA = re.compile(r"^rdma/|/.*rdma|/efa$|/hca")
_IS_DEVICE = re.compile(r"/.*(gpu|npu|tpu|xpu|hpu|dcu|mlu|accelerator|ascend|neuron|mig-|gaudi)", re.IGNORECASE)


def is_accelerator(name: str) -> bool:
    """Returns whether an extended resource is an accelerator."""
    return name in _KINDS or (_IS_DEVICE.search(name) is not None and _IS_RDMA.search(name) is None)


def convert_resources(resources: Field, draft: Draft, container: Path) -> None:
    """Puts a container's resources into the job. `container` is the worker's path in podTemplate."""
    names = dict.fromkeys([*resources.get("limits").fields, *resources.get("requests").fields])
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
            draft.keep(limit, (*container, "resources", "limits", name))
            draft.keep(request, (*container, "resources", "requests", name))
    for name, field in resources.fields.items():
        if name not in ("limits", "requests"):
            draft.keep(field, (*container, "resources", name))


def _accelerator(name: str, limit: Field, request: Field, draft: Draft) -> None:
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


def _device(limit: Field, request: Field, draft: Draft, path: Path) -> int:
    """Puts a number of devices into the job and returns the number. Limit and request must be equal."""
    count = _count(limit or request) or 0
    draft.keep(limit, path, count)
    draft.keep(request, path, count)
    return count


def _count(field: Field) -> int | None:
    """Returns a number of devices, or None if it isn't an integer."""
    written = decimal(field.value, 10**9)
    return field.whole() if written is None else written


def _cpu(limit: Field, request: Field, draft: Draft) -> None:
    path = (*_RESOURCES, "cpu")
    if limit and (not request or _same(limit, request)):
        draft.keep(limit, path)
        request.became(Target(path))
    else:
        draft.keep(request, (*path, "request"))
        draft.keep(limit, (*path, "limit"))


def _memory(limit: Field, request: Field, draft: Draft, container: Path) -> None:
    path = (*_RESOURCES, "memory")
    draft.keep(limit, path)
    if limit and request and _same(limit, request):
        request.became(Target(path))
    else:
        # The job's field sets both the request and the limit, so a different request goes into podTemplate.
        draft.keep(request, (*container, "resources", "requests", "memory"))


def _same(one: Field, other: Field) -> bool:
    values: list[Any] = [one.plain(), other.plain()]
    try:
        return quantity(values[0]) == quantity(values[1])
    except (ValueError, ArithmeticError):
        return bool(values[0] == values[1])


def shared_memory(limit: Any, draft: Draft) -> Any:
    """Returns the size of /dev/shm for a memory volume's limit, or None if the pod must define the volume itself."""
    memory = draft.at((*_RESOURCES, "memory"))
    try:
        if limit is not None and (memory is None or quantity(limit) <= quantity(memory)):
            return limit
        # The volume's content counts as memory of the container, so the container's limit applies.
        return memory if memory is None or quantity(memory) else None
    except (ValueError, ArithmeticError):
        return None
