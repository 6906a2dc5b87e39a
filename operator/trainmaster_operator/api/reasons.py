"""A worker or a job ended for one of these reasons: every one that a status can carry is in this table.

The table decides what follows where no rule of the job matches, how strong a reason is when several workers
report at once, and the reference page is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from trainmaster_operator.wire.report import EXIT_CODES

Answer = Literal["Restart", "Fail", "Ignore"]


class Strength(IntEnum):
    """Strength is how much a reason says about who is at fault, weakest first."""

    # Only suffered from another worker's end.
    PEER = 0
    ERROR = 1
    # The kernel reports it; no peer's end causes it.
    KILLED = 2
    # The cluster took a worker away: not the job's fault, whatever its ranks then reported.
    DISRUPTION = 3


@dataclass(frozen=True)
class Reason:
    """Reason has what it means, what follows by default, and the agent's exit code where it has one of its own."""

    name: str
    meaning: str
    # Restart: a new attempt that counts. Ignore: a new attempt that doesn't count. Fail: the job is over, because a new
    # attempt would end the same way.
    answer: Answer
    strength: Strength = Strength.ERROR

    @property
    def exit_code(self) -> int | None:
        """Returns the exit code that goes with this reason, where one does."""
        return EXIT_CODES.get(self.name)


_ALL = (
    Reason("InvalidSpec", "The spec can't be run, so nothing of the job was made; the message says why.", "Fail"),
    Reason("Error", "The program ended with an exit code other than 0.", "Restart"),
    Reason("Signal", "A rank was killed by a signal (exit code 128 + signal).", "Restart", Strength.KILLED),
    Reason("OOMKilled", "The kernel killed a rank, or the container, for memory.", "Restart", Strength.KILLED),
    Reason("Hung", "No progress within failurePolicy.hang; `hang.action` says what follows.", "Restart"),
    Reason("PreflightMismatch", "The workers' environments differ; the message has the lines.", "Fail"),
    Reason("MasterUnreachable", "A worker couldn't reach rank 0 in time.", "Restart", Strength.PEER),
    Reason("LaunchError", "The program couldn't be started: command or interpreter not found.", "Fail"),
    Reason(
        "Diverged",
        "The loss or the parameters went wrong, and going back to a checkpoint didn't help: an exception of that name, "
        "and its exit code.",
        "Fail",
    ),
    Reason(
        "Usage",
        "The configuration can't be used: the agent's arguments (64), or the program's, shown by an exception "
        "`ConfigError` and exit code 2, as the bundled loop does.",
        "Fail",
    ),
    Reason(
        "AgentLost",
        "The agent, or the whole container, was killed amid an attempt, or doesn't answer while others wait.",
        "Restart",
    ),
    Reason(
        "PeerLost",
        "Every worker that reported only lost its connection to another one, and none said why.",
        "Restart",
        Strength.PEER,
    ),
    Reason(
        "Stopped",
        "The ranks were stopped from outside (exit code 143), and no pod was taken away.",
        "Restart",
        Strength.PEER,
    ),
    Reason("PodDeleted", "A worker's pod was deleted.", "Ignore", Strength.DISRUPTION),
    Reason("Evicted", "A worker's pod was evicted (drain, pressure on the node).", "Ignore", Strength.DISRUPTION),
    Reason("Preempted", "A worker's pod made room for one of higher priority.", "Ignore", Strength.DISRUPTION),
    Reason("NodeLost", "A worker's node was lost, shut down or tainted.", "Ignore", Strength.DISRUPTION),
    Reason(
        "LimitExceeded",
        "The kubelet evicted a pod for using more local storage than it may.",
        "Restart",
        Strength.KILLED,
    ),
    Reason("ImagePull", "An image couldn't be pulled within startupSeconds.", "Fail"),
    Reason("InvalidImageName", "The image's name isn't one.", "Fail"),
    Reason("CreateContainer", "The kubelet couldn't create a container within startupSeconds.", "Fail"),
    Reason("InitFailed", "An init container failed until startupSeconds were over.", "Fail"),
    Reason("Unschedulable", "No node had room for all workers within startupSeconds.", "Fail"),
    Reason("QuotaExceeded", "A quota kept children or pods from being made for startupSeconds.", "Fail"),
    Reason(
        "Refused",
        "The API server refused a child as invalid, or any write for startupSeconds: permission, admission rule.",
        "Fail",
    ),
    Reason("NotInstalled", "The cluster didn't serve the gang scheduler's API for startupSeconds.", "Fail"),
    Reason("NameTaken", "A child's name belongs to an object of somebody else.", "Fail"),
    Reason("StartupDeadlineExceeded", "Not all ranks were up within startupSeconds.", "Fail"),
    Reason("DeadlineExceeded", "The job was active for longer than activeDeadlineSeconds.", "Fail"),
    Reason("MaxRestartsExceeded", "A failure that counts, and no restart left.", "Fail"),
)
REASONS: Mapping[str, Reason] = {reason.name: reason for reason in _ALL}


def known_reason(name: str) -> Reason:
    """Returns the reason of that name; what a pod says is user input, so anything unknown is an Error."""
    return REASONS.get(name, REASONS["Error"])
