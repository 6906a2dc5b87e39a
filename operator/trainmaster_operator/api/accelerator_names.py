"""Each kind of accelerator has a name in Kubernetes.

The names are the device plugins' own: NVIDIA/k8s-device-plugin, ROCm/k8s-device-plugin, intel/intel-device-plugins
(`i915` is the driver of the Data Center GPUs; for the newer driver set `accelerator.resourceName: gpu.intel.com/xe`),
and Ascend/ascend-device-plugin.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster_operator.api.v1alpha1 import Accelerator, JobSpec

RESOURCE_NAMES: Mapping[str, str] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
    "ascend": "huawei.com/Ascend910",
}


def resource_name(accelerator: Accelerator) -> str:
    """Returns the extended resource that `gpus` counts. Parsing refuses a custom kind without a name."""
    return accelerator.resource_name or RESOURCE_NAMES.get(accelerator.kind, "")


def device_names(spec: JobSpec) -> frozenset[str]:
    """Returns the extended resources that a job's own fields ask for."""
    accelerators = [spec.accelerator, *(group.accelerator or spec.accelerator for group in spec.worker_groups or [])]
    names = {resource_name(accelerator) for accelerator in accelerators}
    if spec.interconnect.rdma is not None:
        names.add(spec.interconnect.rdma.resource_name)
    return frozenset(names)
