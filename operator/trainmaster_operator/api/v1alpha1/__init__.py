"""The custom resource `DistributedTrainingJob`, version `v1alpha1`: spec and status as typed, frozen values.

1. `spec` is what the user asks for; `workers`, `policies`, `pods` and `code` have the models of its fields.
2. `status` is what the operator observed and decided.
3. `names` has the group, the phases and the reasons, `base_models` what all models share.

These models are the one source: the CRD is generated from them (`api.crd`), the controller and the command line parse
with them (`api.parsing`), and the reference page is made of their descriptions. Attribute names are Python's, names on
the wire are camelCase (`model_dump(by_alias=True)`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.v1alpha1.base_models import SpecModel, StatusModel
from trainmaster_operator.api.v1alpha1.names import (
    API_VERSION,
    BUNDLED_IMAGE,
    DEFAULT_IMAGE,
    GROUP,
    INSTALL_CRD,
    KIND,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    TERMINAL_PHASES,
    VERSION,
    AnswerableReason,
    FailureReason,
    Phase,
    is_bundled,
)
from trainmaster_operator.api.v1alpha1.pods import Code, CodeClaim
from trainmaster_operator.api.v1alpha1.status import (
    TIME_CATEGORIES,
    Condition,
    Failure,
    JobStatus,
    Progress,
    RecoveryTimes,
    StacksRequest,
    TimeSpent,
    WorkerCounts,
)

if TYPE_CHECKING:
    from trainmaster_operator.api.v1alpha1.pods import (
        Checkpoint,
        CheckpointVolume,
        Gang,
        PodTemplate,
        PodTemplateMetadata,
        Scheduling,
        SecurityContext,
        Topology,
    )
    from trainmaster_operator.api.v1alpha1.policies import (
        Backoff,
        FailurePolicy,
        FailureRule,
        Hang,
        LogRules,
        NodePolicy,
        RunPolicy,
        WarmStart,
    )
    from trainmaster_operator.api.v1alpha1.spec import JobSpec
    from trainmaster_operator.api.v1alpha1.workers import (
        CPU,
        RDMA,
        Accelerator,
        CPUOrQuantity,
        Elastic,
        Interconnect,
        Resources,
        WorkerGroup,
    )

__all__ = [
    "API_VERSION",
    "BUNDLED_IMAGE",
    "CPU",
    "DEFAULT_IMAGE",
    "GROUP",
    "INSTALL_CRD",
    "KIND",
    "PLURAL",
    "RDMA",
    "SHORT_NAME",
    "SINGULAR",
    "TERMINAL_PHASES",
    "TIME_CATEGORIES",
    "VERSION",
    "Accelerator",
    "AnswerableReason",
    "Backoff",
    "CPUOrQuantity",
    "Checkpoint",
    "CheckpointVolume",
    "Code",
    "CodeClaim",
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
    "LogRules",
    "NodePolicy",
    "Phase",
    "PodTemplate",
    "PodTemplateMetadata",
    "Progress",
    "RecoveryTimes",
    "Resources",
    "RunPolicy",
    "Scheduling",
    "SecurityContext",
    "SpecModel",
    "StacksRequest",
    "StatusModel",
    "TimeSpent",
    "Topology",
    "WarmStart",
    "WorkerCounts",
    "WorkerGroup",
    "is_bundled",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Returns a model of the spec; a command that reads a status never waits for these to be made."""
        if name in __all__:
            for module in ("pods", "policies", "workers", "spec"):
                names = vars(import_module(f"{__name__}.{module}"))
                if name in names:
                    return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
