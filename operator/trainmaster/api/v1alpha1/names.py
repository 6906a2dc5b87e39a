"""Names of the custom resource, its phases and reasons, and what its parts have in common."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    model_validator,
)
from pydantic.alias_generators import to_camel

GROUP = "trainmaster.dev"
VERSION = "v1alpha1"
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"
API_VERSION = f"{GROUP}/{VERSION}"
# What to type where the type isn't served.
INSTALL_CRD = "trainmaster crd | kubectl apply --server-side -f -"

# The image whose entry point is the bundled loop, so that `command` may be left out (with any tag or digest).
BUNDLED_IMAGE = "ghcr.io/trainmaster/trainer"


def is_bundled(image: str) -> bool:
    """Whether an image is the bundled trainer, with any tag or digest: it has the agent and a default command."""
    rest = image.removeprefix(BUNDLED_IMAGE)
    return rest != image and (rest == "" or rest[0] in ":@")


# What a rule of failurePolicy can name; `reconciling.reasons` says what each means, and a test holds the two together.
FailureReason = Literal[
    "Error",
    "Signal",
    "OOMKilled",
    "Hung",
    "PreflightMismatch",
    "MasterUnreachable",
    "LaunchError",
    "Usage",
    "AgentLost",
    "PeerLost",
    "Stopped",
    "PodDeleted",
    "Evicted",
    "Preempted",
    "NodeLost",
    "LimitExceeded",
    "ImagePull",
    "InvalidImageName",
    "CreateContainer",
    "InitFailed",
    "Unschedulable",
    "QuotaExceeded",
    "Refused",
    "NotInstalled",
    "NameTaken",
    "StartupDeadlineExceeded",
    "DeadlineExceeded",
    "MaxRestartsExceeded",
    "Diverged",
]

Phase = Literal["Pending", "Suspended", "Starting", "Running", "Restarting", "Succeeded", "Failed"]
TERMINAL_PHASES: frozenset[str] = frozenset({"Succeeded", "Failed"})


class SpecModel(BaseModel):
    """A part of the spec: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """A field that is null is one that isn't given: so the API server reads it too (KEP-1523, defaulting)."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class StatusModel(BaseModel):
    """A part of the status: frozen, camelCase on the wire, unknown fields ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)
