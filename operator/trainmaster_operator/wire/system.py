"""An agent samples its worker's processor, memory, network and GPUs, and sends the samples in the types of this module.

The field names are also the metrics' names: `cpu_cores` is `trainmaster_cpu_cores` on the agent's page of metrics, and
`cpuCores` in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from trainmaster_operator.wire import limits, values


class GpuSample(NamedTuple):
    """GpuSample contains one GPU's figures. None: the driver doesn't report it (the utilization of a MIG device)."""

    gpu_utilization: Optional[float] = None
    """The share of the last sampling period in which a kernel ran, from 0 to 1."""
    gpu_memory_bytes: Optional[float] = None
    gpu_memory_limit_bytes: Optional[float] = None

    @classmethod
    def parse(cls, data: object) -> GpuSample:
        """Returns the well-formed figures of a JSON object."""
        return cls(**_figures(cls._fields, data))


class SystemSample(NamedTuple):
    """SystemSample contains a worker's figures at one time; unknown figures are None."""

    cpu_cores: Optional[float] = None
    """The mean number of busy cores since the previous sample."""
    cpu_limit_cores: Optional[float] = None
    memory_bytes: Optional[float] = None
    """The memory in use, without files' pages that the kernel can drop at once."""
    memory_limit_bytes: Optional[float] = None
    network_receive_bytes_per_second: Optional[float] = None
    network_transmit_bytes_per_second: Optional[float] = None
    gpus: Mapping[int, GpuSample] = MappingProxyType({})
    """The pod's GPUs by index, in the driver's order."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> SystemSample:
        """Returns the well-formed figures of a JSON object, with at most MAX_GPUS GPUs."""
        gpus = {}
        for index, figures in list(values.mapping(data.get("gpus")).items())[: limits.MAX_GPUS]:
            number = values.decimal(index, limits.MAX_GPUS)
            if number is not None:
                gpus[number] = GpuSample.parse(figures)
        return cls(**_figures(WORKER_FIELDS, data), gpus=gpus)

    def to_wire(self) -> dict[str, Any]:
        wire = values.fields_of(self._replace(gpus={}), *WORKER_FIELDS)
        gpus = {str(index): values.fields_of(gpu, *gpu._fields) for index, gpu in self.gpus.items()}
        return {**wire, "gpus": gpus}


WORKER_FIELDS = tuple(name for name in SystemSample._fields if name != "gpus")
"""The figures of a whole worker. The others are each GPU's."""
SYSTEM_METRICS = tuple(map(values.camel, (*WORKER_FIELDS, *GpuSample._fields)))
"""The names of all figures in JSON."""


def _figures(fields: tuple[str, ...], data: object) -> dict[str, Any]:
    """Returns the numbers of at least 0 by field; no share is larger than 1."""
    given, found = values.mapping(data), {}
    for name in fields:
        value = values.number(given.get(values.camel(name)))
        if value is not None and value >= 0:
            found[name] = min(value, 1.0) if name == "gpu_utilization" else value
    return found
