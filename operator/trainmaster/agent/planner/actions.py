"""Actions are what `plan.plan` asks for and the executor performs, one after the other.

`plan.done` says what each has changed, so that the next plan no longer asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from trainmaster.agent.planner.state import Ending
from trainmaster.agent.value import Value
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.joining import Collect, Environment, FollowerMessage, Hung, Patience
from trainmaster.wire.report import Report
from trainmaster.wire.stream import ProgressLine


class KillLeftovers(Value):
    """Kill the processes of an agent before this one."""


class FollowAssignment(Value):
    """Let the leader's table and the way to the leader follow a newer assignment."""

    assignment: Assignment


class Begin(Value):
    """Save that an attempt begins here, before anything of it does: an attempt is never trained twice."""

    report: Report
    assignment: Assignment
    node_rank: int


class Hurry(Value):
    """Try to reach worker 0 now, and more often for a while."""


class RunSetup(Value):
    """Run the setup line."""


class CancelSetup(Value):
    """Kill what runs of the setup line."""


class Launch(Value):
    """Start the launcher."""

    assignment: Assignment
    node_rank: int
    environ: Mapping[str, str]


class DescribeEnvironment(Value):
    """Find out, in the background, what the ranks run in."""

    attempt: int
    environ: Mapping[str, str]


class ExamineRank(Value):
    """Gather what a rank that ended has left behind."""

    local_rank: int
    ending: Ending
    was_ended: bool


class ExamineLauncher(Value):
    """Gather what a launcher that ended has printed last."""

    ending: Ending


class Terminate(Value):
    """Send SIGTERM to processes, and SIGKILL to a launcher that would only wait for its ranks (0: to none)."""

    pids: tuple[int, ...]
    launcher: int = 0


class Sweep(Value):
    """Kill every process of the attempt until none is left."""


class Conclude(Value):
    """Find out why the attempt failed, now that the hung rank has printed its stacks or won't any more."""


class FlushProgress(Value):
    """Read the ranks' progress once more: who reads of the end decides by what it knows of the way there."""


class SaveReport(Value):
    """Write a report to the state folder."""

    report: Report
    exited: bool
    """Whether it is made by exiting."""


class PublishReport(Value):
    """Bring this worker's report to the leader, and onto this worker's own streams."""

    report: Report


class Publish(Value):
    """Bring progress or the environment there."""

    message: Union[ProgressLine, Environment]


class SendToLeader(Value):
    """Send a message to whoever leads, and nowhere else."""

    message: FollowerMessage


class Introduce(Value):
    """Introduce this worker on a new connection to a leader, with everything that it has reported."""

    messages: tuple[FollowerMessage, ...]


class KeepReport(Value):
    """Show another worker's report on this worker's own streams."""

    report: Report


class Diagnose(Value):
    """Let the stall diagnosis have a message of the leader."""

    message: Union[Collect, Hung, Patience]


class WriteTerminationMessage(Value):
    """Leave a report where the kubelet finds it."""

    report: Report


class Exit(Value):
    """End the agent's process."""

    code: int


Action = Union[
    KillLeftovers,
    FollowAssignment,
    Begin,
    Hurry,
    RunSetup,
    CancelSetup,
    Launch,
    DescribeEnvironment,
    ExamineRank,
    ExamineLauncher,
    Terminate,
    Sweep,
    Conclude,
    FlushProgress,
    SaveReport,
    PublishReport,
    Publish,
    SendToLeader,
    Introduce,
    KeepReport,
    Diagnose,
    WriteTerminationMessage,
    Exit,
]
