"""Lists all reasons for which a worker or a job ends.

The table contains the response to failures that no rule of the job matches. If several workers report at once, the
table decides which reason counts. The reference page is generated from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

Answer = Literal["Restart", "Fail", "Ignore"]


class Strength(IntEnum):
    """Strength ranks reasons by how much they reveal about the culprit, with the weakest first."""

    # The worker was only affected by another worker's end.
    PEER = 0
    ERROR = 1
    # The kernel reported the end, and a peer's end can't have caused it.
    KILLED = 2
    # The cluster removed a worker. That isn't the job's fault, regardless of what its ranks reported afterwards.
    DISRUPTION = 3


@dataclass(frozen=True)
class Reason:
    """Reason describes why a worker or a job ended, and the default response."""

    name: str
    meaning: str
    # Restart opens a new attempt and counts it. Ignore opens a new attempt without counting it. Fail ends the job,
    # because a new attempt would end in the same way.
    answer: Answer
    strength: Strength = Strength.ERROR


_ALL = (
    Reason("InvalidSpec", "The spec is invalid, so nothing was created. The message has the reason.", "Fail"),
    Reason("Error", "The program ended with an exit code other than 0.", "Restart"),
    Reason("Signal", "A rank was killed by a signal (exit code 128 + signal).", "Restart", Strength.KILLED),
    Reason("OOMKilled", "The kernel killed a rank, or the container, for memory.", "Restart", Strength.KILLED),
    Reason("Hung", "No progress within failurePolicy.hang. `hang.action` decides what to do.", "Restart"),
    Reason("PreflightMismatch", "The workers' environments differ. The message shows how.", "Fail"),
    Reason("MasterUnreachable", "A worker couldn't reach rank 0 in time.", "Restart", Strength.PEER),
    Reason("LaunchError", "The program couldn't be started: command or interpreter not found.", "Fail"),
    Reason(
        "Diverged",
        "The loss or the parameters became invalid, and returning to a checkpoint didn't help: an exception of that "
        "name, and its exit code.",
        "Fail",
    ),
    Reason(
        "Usage",
        "The configuration is invalid: the agent's arguments (exit code 64), or the program's, if it raises "
        "`ConfigError` and exits with 2, as the bundled loop does.",
        "Fail",
    ),
    Reason(
        "AgentLost",
        "The agent or the whole container was killed during an attempt, or doesn't answer while others wait.",
        "Restart",
    ),
    Reason(
        "PeerLost",
        "Every worker that reported lost its connection to another one, and none reported a cause.",
        "Restart",
        Strength.PEER,
    ),
    Reason(
        "Stopped",
        "Ranks were stopped from outside (exit code 143); no pod was removed.",
        "Restart",
        Strength.PEER,
    ),
    Reason("PodDeleted", "A worker's pod was deleted.", "Ignore", Strength.DISRUPTION),
    Reason("Evicted", "A worker's pod was evicted (drain, pressure on the node).", "Ignore", Strength.DISRUPTION),
    Reason("Preempted", "A worker's pod made room for one of higher priority.", "Ignore", Strength.DISRUPTION),
    Reason("NodeLost", "A worker's node was lost, shut down or tainted.", "Ignore", Strength.DISRUPTION),
    Reason(
        "LimitExceeded",
        "The kubelet evicted a pod over its local storage limit.",
        "Restart",
        Strength.KILLED,
    ),
    Reason("ImagePull", "An image couldn't be pulled within startupSeconds.", "Fail"),
    Reason("InvalidImageName", "The image's name is invalid.", "Fail"),
    Reason("CreateContainer", "The kubelet couldn't create a container within startupSeconds.", "Fail"),
    Reason("InitFailed", "An init container kept failing for startupSeconds.", "Fail"),
    Reason("Unschedulable", "No node had room for all workers within startupSeconds.", "Fail"),
    Reason("QuotaExceeded", "A quota prevented the creation of children or pods for startupSeconds.", "Fail"),
    Reason(
        "Refused",
        "The API server refused a child as invalid, or refused a write for startupSeconds (permission, admission).",
        "Fail",
    ),
    Reason("NotInstalled", "The cluster didn't serve the gang scheduler's API for startupSeconds.", "Fail"),
    Reason("NameTaken", "An object of another owner has the name of a child.", "Fail"),
    Reason("StartupDeadlineExceeded", "Not all ranks were up within startupSeconds.", "Fail"),
    Reason("DeadlineExceeded", "The job was active for longer than activeDeadlineSeconds.", "Fail"),
    Reason(
        "FailsAtStart",
        "The program failed twice with the same exception before its first step, and a restart doesn't change that.",
        "Fail",
    ),
    Reason("MaxRestartsExceeded", "A counted failure when no restart was left.", "Fail"),
)
REASONS: Mapping[str, Reason] = {reason.name: reason for reason in _ALL}


def known_reason(name: str) -> Reason:
    """Returns the reason of that name. Pods report user input, so an unknown reason is an Error."""
    return REASONS.get(name, REASONS["Error"])
