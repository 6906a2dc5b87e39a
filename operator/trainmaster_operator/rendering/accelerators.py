"""A worker asks for its accelerators, and its collectives read variables that depend on them."""

from __future__ import annotations

import math

from trainmaster_operator.api.accelerator_names import resource_name
from trainmaster_operator.api.v1alpha1 import Accelerator, Interconnect, Resources

# NCCL's levels as oneCCL has them (CCL_LOG_LEVEL) and of CANN (ASCEND_GLOBAL_LOG_LEVEL: 0 debug ... 3 error).
_ONECCL_LEVELS = {"VERSION": "warn", "WARN": "warn", "INFO": "info", "TRACE": "trace"}
_CANN_LEVELS = {"VERSION": "2", "WARN": "2", "INFO": "1", "TRACE": "0"}
# torch's own c10d logging serves gloo. DETAIL checks every collective and costs time, so only TRACE asks for it.
_TORCH_LEVELS = {"VERSION": "OFF", "WARN": "OFF", "INFO": "INFO", "TRACE": "DETAIL"}


def extended_resources(resources: Resources, accelerator: Accelerator, interconnect: Interconnect) -> dict[str, str]:
    """Returns the devices of one worker by resource name. Kubernetes wants requests and limits of these to be equal."""
    devices: dict[str, str] = {}
    if resources.gpus:
        devices[resource_name(accelerator)] = str(resources.gpus)
    if interconnect.rdma is not None:
        devices[interconnect.rdma.resource_name] = str(interconnect.rdma.count)
    return devices


def interconnect_environment(
    resources: Resources, accelerator: Accelerator, interconnect: Interconnect
) -> dict[str, str]:
    """Returns the variables of the collective libraries. RCCL (AMD) reads NCCL's names; gloo's are set for every kind,
    because jobs on accelerators use gloo too for what stays on the host."""
    kind = accelerator.kind if resources.gpus else "none"
    nccl = kind in ("nvidia", "amd", "custom")
    environment: dict[str, str] = {}
    if interconnect.debug is not None:
        if nccl:
            environment["NCCL_DEBUG"] = interconnect.debug
        elif kind == "intel":
            environment["CCL_LOG_LEVEL"] = _ONECCL_LEVELS[interconnect.debug]
        elif kind == "ascend":
            environment["ASCEND_GLOBAL_LOG_LEVEL"] = _CANN_LEVELS[interconnect.debug]
            environment["ASCEND_SLOG_PRINT_TO_STDOUT"] = "1"
        else:
            environment["TORCH_DISTRIBUTED_DEBUG"] = _TORCH_LEVELS[interconnect.debug]
    if interconnect.interface is not None:
        environment["GLOO_SOCKET_IFNAME"] = interconnect.interface
        if nccl:
            environment["NCCL_SOCKET_IFNAME"] = interconnect.interface
        elif kind == "ascend":
            environment["HCCL_SOCKET_IFNAME"] = interconnect.interface
        elif kind == "intel":
            environment["FI_TCP_IFACE"] = interconnect.interface
    if interconnect.nvlink is not None and nccl:
        # NVLS 2 is "where the GPUs have it"; 1 would fail on those that don't.
        environment["NCCL_P2P_DISABLE"] = "0" if interconnect.nvlink else "1"
        environment["NCCL_NVLS_ENABLE"] = "2" if interconnect.nvlink else "0"
    return environment


def toleration_seconds(lost_after_seconds: float) -> int:
    """Returns seconds as a toleration has them: whole ones."""
    return math.ceil(lost_after_seconds)
