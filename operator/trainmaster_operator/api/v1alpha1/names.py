"""The custom resource, its phases and its reasons have these names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GROUP = "trainmaster.dev"
VERSION = "v1alpha1"
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"
API_VERSION = f"{GROUP}/{VERSION}"
# A user types this where the type isn't served.
INSTALL_CRD = "trainmaster crd | kubectl apply --server-side -f -"

# The image whose entry point is the bundled loop, so that `command` may be left out (with any tag or digest).
BUNDLED_IMAGE = "ghcr.io/trainmaster/trainer"
# Whose training configuration `api.training_schema` knows.
DEFAULT_IMAGE = f"{BUNDLED_IMAGE}:0.1.0"
# User id and group id of the bundled image (images/trainer/Dockerfile): volumes must be writable for it.
BUNDLED_USER = 65532


@dataclass(frozen=True)
class JobIdentity:
    """JobIdentity names one job. Two jobs that had the same name one after the other differ in `uid`."""

    namespace: str
    name: str
    uid: str


def set_names(job: str, groups: Sequence[str]) -> list[str]:
    """Returns the names of a job's StatefulSets, in the order of its worker groups; a job without groups has one."""
    return [job] if len(groups) < 2 else [f"{job}-{group}" for group in groups]


def is_bundled(image: str) -> bool:
    """Returns whether an image is the bundled trainer, of any tag or digest: it has the agent and a default command."""
    rest = image.removeprefix(BUNDLED_IMAGE)
    return rest != image and (rest == "" or rest[0] in ":@")


# What a worker's end can be for. A rule of failurePolicy can answer these; `reconciling.reasons` says what each means,
# and a test holds the two together.
AnswerableReason = Literal[
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
    "LimitExceeded",
    "Diverged",
]
# No rule is asked about these: a disruption doesn't count, and the others keep the job from starting or end all of it.
FailureReason = Literal[
    AnswerableReason,
    "PodDeleted",
    "Evicted",
    "Preempted",
    "NodeLost",
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
]

Phase = Literal["Pending", "Suspended", "Starting", "Running", "Restarting", "Succeeded", "Failed"]
TERMINAL_PHASES: frozenset[str] = frozenset({"Succeeded", "Failed"})
