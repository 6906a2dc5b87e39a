"""The spec's workers have resources, accelerators and an interconnect; they can be several groups, or elastic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, StrictBool, StrictInt, Tag, WithJsonSchema

from trainmaster_operator.api.v1alpha1.base_models import SpecModel
from trainmaster_operator.api.values import (
    CORES_HINT,
    FITS_CORES,
    NO_LIST,
    Cores,
    Devices,
    DNSLabel,
    ExtendedResource,
    Interface,
    Quantity,
    SpareCount,
    WorkerCount,
)


class CPU(SpecModel):
    """CPU has a request and a limit, in cores. The limit may exceed what the node has left."""

    request: Cores | None = Field(None, description="Cores that the scheduler reserves for each worker.")
    limit: Cores | None = Field(None, description="Cores that each worker may use at most.")


_CPU_FIELDS = CPU.model_json_schema()["properties"]
# A structural schema has no type for "a quantity or an object", and CEL sees nothing without a type. What the schema
# can say by values it says: which fields there are, and how each is written. That the request isn't above the limit is
# left to the operator.
_CPU_SCHEMA = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {name: _CPU_FIELDS[name] for name in _CPU_FIELDS},
    "allOf": [
        {"anyOf": [{"enum": [CORES_HINT]}, {**FITS_CORES, **NO_LIST}]},
        {
            "anyOf": [
                {"enum": ["a mapping of request and limit"]},
                {"maxProperties": 0},
                *({"required": names, "maxProperties": len(names)} for names in (["request"], ["limit"])),
                {"required": ["request", "limit"], "maxProperties": 2},
            ]
        },
    ],
}
CPUOrQuantity = Annotated[
    Annotated[CPU, Tag("object")] | Annotated[Cores, Tag("quantity")],
    Discriminator(lambda value: "object" if isinstance(value, CPU | Mapping) else "quantity"),
    WithJsonSchema(_CPU_SCHEMA),
]


class Resources(SpecModel):
    """Resources are what each worker gets."""

    gpus: Devices = Field(
        0, description="Accelerators for each worker, rendered as limits and equal requests. A whole number."
    )
    cpu: CPUOrQuantity | None = Field(
        None, description="CPU for each worker: one quantity for request and limit, or {request, limit}."
    )
    memory: Quantity | None = Field(
        None, description="Memory for each worker, as request and limit (128Gi). What is in /dev/shm counts too."
    )
    shared_memory: Quantity | None = Field(
        None,
        description="Size of /dev/shm, a memory emptyDir. Default: 8Gi when gpus > 0 (NCCL and data loaders "
        "need more than the runtime's 64Mi), otherwise the runtime's default.",
    )


class Accelerator(SpecModel):
    """Accelerator is the kind that `resources.gpus` counts."""

    kind: Literal["nvidia", "amd", "intel", "ascend", "custom"] = Field(
        "nvidia", description="Vendor: decides the extended resource's name and the backend that `auto` means."
    )
    resource_name: ExtendedResource | None = Field(
        None,
        description="Extended resource in place of the kind's own, such as a MIG profile "
        "(nvidia.com/mig-3g.20gb). Required for kind custom.",
    )


class RDMA(SpecModel):
    """RDMA is an RDMA device plugin's resource."""

    resource_name: ExtendedResource = Field(..., description="Extended resource of the device plugin (rdma/hca).")
    count: Annotated[StrictInt, Field(ge=1, le=1024)] = Field(1, description="Devices for each worker.")


class Interconnect(SpecModel):
    """Interconnect says how the workers' collectives travel."""

    nvlink: StrictBool | None = Field(
        None,
        description="false turns NVLink (NCCL's P2P and NVLS) off; true turns it on where the GPUs have it, whatever "
        "the image's nccl.conf says; unset leaves it to NCCL.",
    )
    rdma: RDMA | None = Field(
        None,
        description="RDMA devices for each worker. Its containers get the capability IPC_LOCK, to pin memory, so the "
        "namespace must allow more than the baseline Pod Security Standard.",
    )
    host_network: StrictBool = Field(
        False, description="Run the pods in the node's network: one worker on a node, and a privileged namespace."
    )
    interface: Interface | None = Field(None, description="Network interface for NCCL, GLOO and HCCL (eth0).")
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = Field(
        None, description="NCCL_DEBUG and the other backends' equivalent."
    )


class WorkerGroup(SpecModel):
    """WorkerGroup has workers of one kind of machine; each group becomes a StatefulSet."""

    name: DNSLabel = Field(..., description="Name of the group, unique in the job.")
    workers: WorkerCount = Field(..., description="Number of workers in the group.")
    spares: SpareCount | None = Field(
        None, description="Pods of the group beyond its workers, which take the places of lost ones of this group."
    )
    resources: Resources = Field(default_factory=Resources, description="What each worker of the group gets.")
    accelerator: Accelerator | None = Field(None, description="Accelerator of the group; default: the job's.")
    node_selector: dict[str, str] | None = Field(
        None, max_length=64, description="Node labels that the group's pods need."
    )


class Elastic(SpecModel):
    """Elastic says how far the number of workers may shrink and grow."""

    min_workers: WorkerCount = Field(..., description="Fewest workers that the job trains with.")
    max_workers: WorkerCount = Field(..., description="Most workers that the job is scaled to.")
