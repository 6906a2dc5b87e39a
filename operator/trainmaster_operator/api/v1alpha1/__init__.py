"""Defines version `v1alpha1` of the custom resource `DistributedTrainingJob` as typed, frozen values.

1. `spec` is the user's request. `workers`, `policies` and `pods` define the models of its fields.
2. `status` contains the operator's observations and decisions.
3. `names` defines the group, the phases and the reasons, and `base_models` the base classes of all models.

The CRD (`api.crd`) and the reference page are generated from these models, and every reader parses with them
(`api.parsing`). Attributes use Python's naming style. In JSON, names are in camelCase (`model_dump(by_alias=True)`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.v1alpha1.base_models import SpecModel, StatusModel
from trainmaster_operator.api.v1alpha1.names import (
    API_VERSION,
    BUNDLED_IMAGE,
    BUNDLED_USER,
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
    JobIdentity,
    Phase,
    is_bundled,
)
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
        Code,
        CodeClaim,
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Returns a model of the spec. Commands that only read a status never load these models."""
        if not name.startswith("_"):
            for module in ("pods", "policies", "workers", "spec"):
                names = vars(import_module(f"{__name__}.{module}"))
                if name in names:
                    return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
