"""Actions are what `plan.plan` asks for and the executor performs, one after the other.

`plan.done` says what each has changed, so that the next plan no longer asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Union

from trainmaster_operator.agent.planner.state import Ending
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Collect, Environment, FollowerMessage, Hung, Modules, Patience
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine


class KillLeftovers(NamedTuple):
    """Kill the processes of an agent before this one."""


class ApplyAssignment(NamedTuple):
    """Apply a newer assignment to the leader's table and to the way to the leader."""

    assignment: Assignment


class Begin(NamedTuple):
    """Save that an attempt begins here, before anything of it does: an attempt is never trained twice."""

    report: Report
    assignment: Assignment
    node_rank: int


class Adopt(NamedTuple):
    """Save that what runs or is prepared here continues in the next attempt, before anything of it does."""

    report: Report
    assignment: Assignment
    node_rank: int


class Decline(NamedTuple):
    """Report that this worker can't continue in another attempt, because no process of its ranks is left."""

    report: Report


class Regroup(NamedTuple):
    """Kill ranks that are absent, wake those that continue, and start others again to join (`state.Regrouping`)."""

    assignment: Assignment
    node_rank: int
    killed: tuple[int, ...]
    restarted: tuple[int, ...]


class Hurry(NamedTuple):
    """Try to reach worker 0 now, and more often for a while."""


class FetchCode(NamedTuple):
    """Unpack the user's code, once its archive is there."""

    digest: str


class RefuseLaunch(NamedTuple):
    """End an attempt before its ranks are started."""

    error: str


class EndWarm(NamedTuple):
    """End the process from which ranks are forked: it has, or may have, imported old code."""


class RunSetup(NamedTuple):
    """Run the setup line."""


class WarmUp(NamedTuple):
    """Start the process from which ranks are forked."""

    environ: Mapping[str, str]


class Preload(NamedTuple):
    """Have the warm process import what the ranks of another worker have."""

    modules: Modules


class CancelSetup(NamedTuple):
    """Kill what runs of the setup line."""


class Launch(NamedTuple):
    """Start the ranks, or the launcher that starts them."""

    assignment: Assignment
    node_rank: int
    environ: Mapping[str, str]


class DescribeEnvironment(NamedTuple):
    """Find out, in the background, what the ranks run in."""

    attempt: int
    environ: Mapping[str, str]


class ExamineRank(NamedTuple):
    """Gather what a rank that ended has left behind."""

    local_rank: int
    ending: Ending
    was_ended: bool


class ExamineLauncher(NamedTuple):
    """Gather what a launcher that ended has printed last."""

    ending: Ending


class Terminate(NamedTuple):
    """Send SIGTERM to processes, and SIGKILL to a launcher that would only wait for its ranks (0: to none).

    `planned_seconds`: how long ranks have for their end in a planned stop; 0 after a failure.
    """

    pids: tuple[int, ...]
    launcher: int = 0
    planned_seconds: float = 0.0


class FindSavingRanks(NamedTuple):
    """Find the ranks that are writing their state, or have written it."""


class KillProcesses(NamedTuple):
    """Send SIGKILL to processes."""

    pids: tuple[int, ...]


class KillRemains(NamedTuple):
    """Kill what a rank that ended has started: it shares the rank's sockets, which others wait to see closed."""

    pid: int


class Sweep(NamedTuple):
    """Kill every process of the attempt until none is left."""


class Conclude(NamedTuple):
    """Find out why the attempt failed, now that the hung rank has printed its stacks or won't any more."""


class FlushProgress(NamedTuple):
    """Read the ranks' progress once more: it has to be published before the end."""


class SaveReport(NamedTuple):
    """Write a report to the state folder."""

    report: Report
    exited: bool
    """Whether it is made by exiting."""


class PublishReport(NamedTuple):
    """Bring this worker's report to the leader, and onto this worker's own streams."""

    report: Report


class Publish(NamedTuple):
    """Bring progress, the environment or the modules there."""

    message: Union[ProgressLine, Environment, Modules]


class SendToLeader(NamedTuple):
    """Send a message to the leader only."""

    message: FollowerMessage


class Introduce(NamedTuple):
    """Introduce this worker on a new connection to a leader, with everything that it has reported."""

    messages: tuple[FollowerMessage, ...]


class KeepReport(NamedTuple):
    """Show another worker's report on this worker's own streams."""

    report: Report


class Diagnose(NamedTuple):
    """Let the stall diagnosis have a message of the leader."""

    message: Union[Collect, Hung, Patience]


class HandOver(NamedTuple):
    """Send the leader what was printed last, which the container's log won't have for long."""


class WriteTerminationMessage(NamedTuple):
    """Leave a report where the kubelet finds it."""

    report: Report


class Exit(NamedTuple):
    """End the agent's process."""

    code: int


_Prepare = Union[FetchCode, RefuseLaunch, RunSetup, CancelSetup, WarmUp, Preload, EndWarm, KillLeftovers]
_Begin = Union[ApplyAssignment, Begin, Adopt, Decline, Regroup, Hurry, Launch, DescribeEnvironment]
_End = Union[
    ExamineRank, ExamineLauncher, Terminate, FindSavingRanks, KillProcesses, KillRemains, Sweep, Conclude, Exit
]
_Save = Union[FlushProgress, SaveReport, HandOver, WriteTerminationMessage]
_Send = Union[PublishReport, Publish, SendToLeader, Introduce, KeepReport, Diagnose]
Action = Union[_Prepare, _Begin, _End, _Save, _Send]
