"""Actions are requests of `plan.plan` that the executor performs one by one; each is a NamedTuple of this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Collect, Environment, FollowerMessage, Hung, Modules, Patience
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine

Action = tuple[Any, ...]


class KillLeftovers(NamedTuple):
    """Kill the processes of an earlier agent."""


class ApplyAssignment(NamedTuple):
    """Apply a newer assignment to the leader's table and to the follower."""

    assignment: Assignment


class Begin(NamedTuple):
    """Save that an attempt begins, before it begins, so that none is trained twice. Then try to reach worker 0."""

    report: Report
    assignment: Assignment


class Adopt(NamedTuple):
    """Save that the running or prepared ranks continue in the next attempt, before they continue."""

    report: Report
    assignment: Assignment


class Regroup(NamedTuple):
    """Wake the ranks that continue, once the report of their attempt is published."""

    assignment: Assignment
    node_rank: int
    killed: tuple[int, ...]
    """Pids of absent ranks that still live; a stopped process's sockets close only when the process ends."""
    restarted: tuple[int, ...]
    """Local ranks to start again, so that they join."""


class FetchCode(NamedTuple):
    """Unpack the user's code once its archive is available."""

    digest: str


class EndWarm(NamedTuple):
    """End the warm process, because it may have imported old code."""


class RunSetup(NamedTuple):
    """Run the setup line."""


class WarmUp(NamedTuple):
    """Start the warm process."""

    environ: Mapping[str, str]


class Preload(NamedTuple):
    """Import another worker's modules in the warm process."""

    modules: Modules


class CancelSetup(NamedTuple):
    """Kill the setup line's processes."""


class Launch(NamedTuple):
    """Start the ranks, or the launcher that starts them."""

    assignment: Assignment
    node_rank: int
    environ: Mapping[str, str]


class DescribeEnvironment(NamedTuple):
    """Describe the ranks' environment, in the background."""

    attempt: int
    environ: Mapping[str, str]


class ExamineRank(NamedTuple):
    """Examine an ended rank's output and files."""

    local_rank: int
    ending: Ending
    was_ended: bool
    """Whether the agent or torchrun has ended the rank."""


class ExamineLauncher(NamedTuple):
    """Examine an ended launcher's last output."""

    ending: Ending


class Terminate(NamedTuple):
    """Send SIGTERM to processes. Send SIGKILL to a launcher that would only wait for its ranks; 0: there is none.

    `planned_seconds`: the ranks' time to exit in a planned stop; 0 after a failure.
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
    """Kill an ended rank's children, because they keep the rank's sockets open, and its peers wait on these sockets."""

    pid: int


class Sweep(NamedTuple):
    """Kill the attempt's processes until none is left."""


class Conclude(NamedTuple):
    """Find the reason for the attempt's failure. The hung rank has printed its stacks, or won't print them."""


class FlushProgress(NamedTuple):
    """Read the ranks' progress a last time, because it must be published before the report of the end."""


class SaveReport(NamedTuple):
    """Write a report to the state folder."""

    report: Report
    exited: bool
    """Whether the agent is about to exit to send this report."""


class PublishReport(NamedTuple):
    """Send this worker's report to the leader and to this worker's own streams."""

    report: Report


class Publish(NamedTuple):
    """Send progress, the environment or the modules to the receivers of `PublishReport`."""

    message: Union[ProgressLine, Environment, Modules]


class SendToLeader(NamedTuple):
    """Send a message to the leader only."""

    message: FollowerMessage


class Introduce(NamedTuple):
    """Introduce this worker to a newly connected leader, with all of its reports."""

    messages: tuple[FollowerMessage, ...]


class KeepReport(NamedTuple):
    """Show another worker's report on this worker's own streams."""

    report: Report


class Diagnose(NamedTuple):
    """Pass the leader's message on to the diagnosis of stalls."""

    message: Union[Collect, Hung, Patience]


class HandOver(NamedTuple):
    """Send the leader this worker's last output, because the container's log will soon be lost."""


class WriteTerminationMessage(NamedTuple):
    """Write a report as the container's termination message, which the kubelet reads."""

    report: Report


class Exit(NamedTuple):
    """End the agent's process."""
