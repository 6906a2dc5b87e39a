"""The custom resource `DistributedTrainingJob`, version `v1alpha1`: spec and status as typed, frozen values.

1. `spec` is the user's request; `workers`, `policies` and `pods` have the models of its fields.
2. `status` is the operator's observations and decisions.
3. `names` has the group, the phases and the reasons; `base_models` has the base of all models.

These models are the single source: the CRD (`api.crd`) and the reference page are generated from them, and every reader
parses with them (`api.parsing`). Attributes have Python's names; on the wire they are camelCase
(`model_dump(by_alias=True)`).
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
