"""Defines the names of the custom resource, of its phases and reasons, and of a job's StatefulSets."""

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
# The command that messages suggest if the cluster doesn't serve the custom resource.
INSTALL_CRD = "trainmaster crd | kubectl apply --server-side -f -"

# With any tag or digest of this image, `command` is optional, because the image starts the bundled loop.
BUNDLED_IMAGE = "ghcr.io/trainmaster/trainer"
# The image of this version. `api.training_schema` checks `training` only for jobs with this image.
DEFAULT_IMAGE = f"{BUNDLED_IMAGE}:0.1.0"
# User id and group id of the bundled image (images/trainer/Dockerfile). Volumes must be writable for this user.
BUNDLED_USER = 65532


@dataclass(frozen=True)
class JobIdentity:
    """JobIdentity identifies one job. If a job is deleted and created again, its `uid` changes."""

    namespace: str
    name: str
    uid: str


def set_names(job: str, groups: Sequence[str]) -> list[str]:
    """Returns the names of a job's StatefulSets in the order of its groups. Fewer than two groups give one name."""
    return [job] if len(groups) < 2 else [f"{job}-{group}" for group in groups]


def is_bundled(image: str) -> bool:
    """Returns whether an image is the bundled trainer, which contains the agent and a default command."""
    rest = image.removeprefix(BUNDLED_IMAGE)
    return rest != image and (rest == "" or rest[0] in ":@")


# Reasons that a rule of failurePolicy can match. Rules can't match the further reasons of `api.reasons`, because
# disruptions don't count and the others end or prevent the whole job.
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

Phase = Literal["Pending", "Suspending", "Suspended", "Starting", "Running", "Restarting", "Succeeded", "Failed"]
TERMINAL_PHASES: frozenset[str] = frozenset({"Succeeded", "Failed"})
# The phases of a job that a user, or a queue's controller, has suspended. While its pods still save a checkpoint and
# hold their resources, the job is Suspending.
SUSPENDED_PHASES: frozenset[str] = frozenset({"Suspending", "Suspended"})
