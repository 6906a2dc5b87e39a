"""Defines version `v1alpha1` of the custom resource `DistributedTrainingJob` as typed, frozen values.

1. `spec` is the user's request.
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
    from trainmaster_operator.api.v1alpha1.spec import (
        CPU,
        RDMA,
        Accelerator,
        Backoff,
        Checkpoint,
        CheckpointVolume,
        Code,
        CodeClaim,
        CPUOrQuantity,
        Elastic,
        FailurePolicy,
        FailureRule,
        Gang,
        Hang,
        Interconnect,
        JobSpec,
        LogRules,
        NodePolicy,
        PodTemplate,
        PodTemplateMetadata,
        Resources,
        RunPolicy,
        Scheduling,
        SecurityContext,
        Topology,
        WarmStart,
        WorkerGroup,
    )
else:

    def __getattr__(name: str) -> Any:
        """Returns a model of the spec. Commands that only read a status never load these models."""
        models = {} if name.startswith("_") else vars(import_module(f"{__name__}.spec"))
        if name not in models:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return models[name]
