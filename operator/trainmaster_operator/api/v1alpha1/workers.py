"""Defines the fields of a spec for workers: resources, accelerators, interconnect, groups, and elasticity."""

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
    """CPU has a request and a limit, in cores. The limit may exceed the node's free cores."""

    request: Cores | None = Field(None, description="Cores that the scheduler reserves for each worker.")
    limit: Cores | None = Field(None, description="Cores that each worker may use at most.")


_CPU_FIELDS = CPU.model_json_schema()["properties"]
# A structural schema can't describe "a quantity or an object", and CEL can't read a field without a type. So the schema
# checks the fields and their syntax through value rules, and the operator compares the request with the limit.
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
    """Resources of each worker."""

    gpus: Devices = Field(0, description="Number of accelerators for each worker, rendered as limit and equal request.")
    cpu: CPUOrQuantity | None = Field(
        None, description="CPU for each worker: one quantity for request and limit, or {request, limit}."
    )
    memory: Quantity | None = Field(
        None, description="Memory for each worker, as request and limit (128Gi). Files in /dev/shm count too."
    )
    shared_memory: Quantity | None = Field(
        None,
        description="Size of /dev/shm, a memory emptyDir. Default: 8Gi if gpus > 0, because NCCL and data loaders need "
        "more than the runtime's 64Mi; otherwise the runtime's default.",
    )


class Accelerator(SpecModel):
    """Accelerator is the kind that `resources.gpus` counts."""

    kind: Literal["nvidia", "amd", "intel", "ascend", "custom"] = Field(
        "nvidia", description="Vendor, which determines the extended resource and the backend that auto chooses."
    )
    resource_name: ExtendedResource | None = Field(
        None,
        description="Extended resource, if it isn't the usual one of the kind, such as a MIG profile "
        "(nvidia.com/mig-3g.20gb). Required for kind custom.",
    )


class RDMA(SpecModel):
    """RDMA is the resource of an RDMA device plugin."""

    resource_name: ExtendedResource = Field(..., description="Extended resource of the device plugin (rdma/hca).")
    count: Annotated[StrictInt, Field(ge=1, le=1024)] = Field(1, description="Devices for each worker.")


class Interconnect(SpecModel):
    """Interconnect configures the network of the workers' collectives."""

    nvlink: StrictBool | None = Field(
        None,
        description="false disables NVLink (NCCL's P2P and NVLS). true enables it if the GPUs have NVLink, regardless "
        "of the image's nccl.conf. Unset leaves the choice to NCCL.",
    )
    rdma: RDMA | None = Field(
        None,
        description="RDMA devices for each worker. The worker gets the capability IPC_LOCK to pin memory, so the "
        "namespace must allow more than the baseline Pod Security Standard.",
    )
    host_network: StrictBool = Field(
        False,
        description="Run the pods in the node's network. Needs a privileged namespace, and allows one worker per node.",
    )
    interface: Interface | None = Field(None, description="Network interface for NCCL, GLOO and HCCL (eth0).")
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = Field(
        None, description="Value of NCCL_DEBUG, or of its equivalent for other backends."
    )


class WorkerGroup(SpecModel):
    """WorkerGroup is a group of workers on one kind of machine. Each group becomes a StatefulSet."""

    name: DNSLabel = Field(..., description="Name of the group, unique in the job.")
    workers: WorkerCount = Field(..., description="Number of workers in the group.")
    spares: SpareCount | None = Field(
        None, description="Additional pods of the group, which take the places of lost workers of this group."
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of each worker in the group.")
    accelerator: Accelerator | None = Field(None, description="Accelerator of the group. Default: the job's.")
    node_selector: dict[str, str] | None = Field(
        None, max_length=64, description="Node labels that the group's pods need."
    )


class Elastic(SpecModel):
    """Elastic is the range in which the number of workers may change."""

    min_workers: WorkerCount = Field(..., description="Minimum number of workers to train with.")
    max_workers: WorkerCount = Field(..., description="Maximum number of workers.")
