"""The custom resource `DistributedTrainingJob`, version `v1alpha1`: spec and status as typed, frozen values.

These models are the one source. The CRD is generated from them (`api.crd`), the controller and the command line parse
with them (`api.parsing` turns what pydantic finds into one sentence), the reference page is made from their
descriptions. Attribute names are Python's, names on the wire are camelCase; `model_dump(by_alias=True)` gives the wire.

Spec models refuse unknown fields. Status models ignore them: an older operator must be able to read the status that a
newer one wrote.
"""

from __future__ import annotations

from trainmaster.api.v1alpha1.names import (
    API_VERSION,
    BUNDLED_IMAGE,
    GROUP,
    INSTALL_CRD,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    TERMINAL_PHASES,
    VERSION,
    FailureReason,
    Phase,
    SpecModel,
    StatusModel,
    is_bundled,
)
from trainmaster.api.v1alpha1.spec import (
    CPU,
    RDMA,
    Accelerator,
    Backoff,
    Checkpoint,
    CheckpointVolume,
    CPUOrQuantity,
    Elastic,
    FailurePolicy,
    FailureRule,
    Gang,
    Hang,
    Interconnect,
    JobSpec,
    NodePolicy,
    PodTemplate,
    PodTemplateMetadata,
    Resources,
    RunPolicy,
    Scheduling,
    SecurityContext,
    Topology,
    WorkerGroup,
)
from trainmaster.api.v1alpha1.status import (
    Condition,
    Failure,
    JobStatus,
    Progress,
    TimeSpent,
    WorkerCounts,
)

__all__ = [
    "API_VERSION",
    "BUNDLED_IMAGE",
    "CPU",
    "GROUP",
    "INSTALL_CRD",
    "KIND",
    "PLURAL",
    "RDMA",
    "SHORT_NAME",
    "SINGULAR",
    "TERMINAL_PHASES",
    "VERSION",
    "Accelerator",
    "Backoff",
    "CPUOrQuantity",
    "Checkpoint",
    "CheckpointVolume",
    "Condition",
    "Elastic",
    "Failure",
    "FailurePolicy",
    "FailureReason",
    "FailureRule",
    "Gang",
    "Hang",
    "Interconnect",
    "JobSpec",
    "JobStatus",
    "NodePolicy",
    "Phase",
    "PodTemplate",
    "PodTemplateMetadata",
    "Progress",
    "Resources",
    "RunPolicy",
    "Scheduling",
    "SecurityContext",
    "SpecModel",
    "StatusModel",
    "TimeSpent",
    "Topology",
    "WorkerCounts",
    "WorkerGroup",
    "is_bundled",
]
