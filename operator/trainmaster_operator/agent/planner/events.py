"""Events are what sockets, processes, files, timers and signals put into the executor's queue.

The executor takes one after the other (`update.update`, then `plan.plan`), so nothing re-enters. What the leader sends
is an event as it stands (`wire.joining`), and so is this worker's own `Environment`, once it is known. A few events
come back at once from an action that the executor performed (`Launched`, `RankExamined`, `SaveFailed` …).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, Union

from trainmaster_operator.agent.planner.state import Ending, LeaderContact
from trainmaster_operator.agent.value import Value
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Ack, Collect, Environment, Hung, Mismatch, Modules, Patience, Stop
from trainmaster_operator.wire.stream import ProgressLine


class OwnEvent(Value):
    """Something has happened on this worker."""


class AssignmentReceived(OwnEvent):
    """A verified assignment came: from the annotation's file, a push to this agent, or the leader."""

    assignment: Assignment


class TerminationRequested(OwnEvent):
    """SIGTERM has arrived."""


class DeadlinePassed(OwnEvent):
    """A time that `plan.wake_at` named has come."""


class LeaderContactChanged(OwnEvent):
    """Who leads, whether an operator watches, or how near worker 0 is, has changed."""

    contact: LeaderContact


class LeaderJoined(OwnEvent):
    """A connection to a leader stands, and nothing has been sent on it yet."""


class CodeFetched(OwnEvent):
    """The folder of the user's code has what this archive has."""

    digest: str


class CodeRefused(OwnEvent):
    """The archive isn't there in time, or can't be unpacked."""

    digest: str
    error: str


class SetupEnded(OwnEvent):
    """The setup line has ended: its environment is known, or it has failed."""

    environ: Optional[Mapping[str, str]]
    exit_code: int = 0
    signal: Optional[int] = None
    error: str = ""


class SaveFailed(OwnEvent):
    """A report could not be written to the state folder."""

    error: str


class Launched(OwnEvent):
    """The launcher runs, or ranks have been ordered from the warm process."""

    pid: int
    """0: there is no launcher."""
    wraps_ranks: bool
    """Whether ranks announce themselves; else the launcher is the only rank that is known."""
    first_rank: int
    continuable: bool = False
    """Whether the agent has started the ranks itself, so that they can go on in a continued attempt."""


class LauncherStarted(OwnEvent):
    """The launcher runs after all, because the warm process has forked no ranks."""

    pid: int


class NothingForked(OwnEvent):
    """The warm process has forked no ranks, and none are wanted any more."""


class RanksForked(OwnEvent):
    """The warm process has forked all ranks."""


KILLED = "killed"
"""The agent itself has ended the warm process, which says nothing of the next one."""
FAILED = "failed"
"""It has ended by itself, was killed by somebody else, or didn't answer in time. Another one may fare better."""
LACKING = "lacking"
"""What it needs isn't there: memory, room on the disk, processes, or torch. The next attempt may find it."""
HOPELESS = "hopeless"
"""Another one would fare the same: the command, the Python, torch itself or the ranks' own memory are the reason."""


class WarmProcessKilled(OwnEvent):
    """The warm process was sent SIGKILL; `WarmProcessEnded` follows."""


class WarmProcessEnded(OwnEvent):
    """There is no warm process any more, or none could be started."""

    verdict: str
    """What that says of the next one: one of the four above."""


class ModulesLearned(OwnEvent):
    """The warm process has imported what a rank of this worker had imported at its first step."""

    modules: Modules


class LaunchFailed(OwnEvent):
    """The launcher couldn't be started."""

    error: str


class RankStarted(OwnEvent):
    """A rank has announced itself."""

    local_rank: int
    pid: int


class ProcessEnded(OwnEvent):
    """A child of the agent, or a rank that is watched, has ended."""

    pid: int
    ending: Optional[Ending]
    """None where its parent has reaped it, and this kernel keeps no status for others."""
    unseen: frozenset[int] = frozenset()
    """Pids of ranks that have ended too, of which no event has come yet."""


class RankExamined(OwnEvent):
    """A rank that ended was examined for what it has left behind."""

    local_rank: int
    ending: Ending
    was_ended: bool
    """Whether the agent or torchrun had ended it."""
    raised: bool
    """Whether it left an exception of its own, other than that its peer was gone."""
    evidence: str
    oom_kills: int
    """Kills for memory in this container since the attempt began."""


class LauncherExamined(OwnEvent):
    """A launcher that ended was examined for what it has printed last."""

    ending: Ending
    evidence: str
    oom_kills: int


class EnvironmentPrinted(OwnEvent):
    """A rank has printed what it runs on."""

    attempt: int
    line: str


class StoreEnded(OwnEvent):
    """The process that serves torch's store to the ranks has ended with an error."""

    attempt: int
    ending: Ending
    evidence: str
    oom_kills: int


class SavingRanksFound(OwnEvent):
    """Ranks were asked for whether they are writing their state."""

    seconds: Mapping[int, float]
    """What each of them says it needs, by local rank; 0: it has written."""


class RunEmptied(OwnEvent):
    """No process of the attempt is left."""


class RanksUp(OwnEvent):
    """All ranks of this worker have been started and have shown life."""

    attempt: int


class ContinuingChanged(OwnEvent):
    """Ranks say something else of continuing than before; both are by local rank."""

    attempt: int
    words: Mapping[int, str]
    """`able` or `ready`."""
    groups: Mapping[int, int]
    """The attempt whose group each rank is in."""


class RankNotStarted(OwnEvent):
    """A rank that should join couldn't be started."""

    local_rank: int
    error: str


class Progressed(OwnEvent):
    """A line of progress is to be published."""

    line: ProgressLine
    first_step_at: Optional[float] = None
    """When all ranks of this worker had done the attempt's first step (seconds since the epoch)."""


class RankProvoked(OwnEvent):
    """A hung rank was ended in the way that makes it print its stacks."""

    attempt: int


class AttemptFailed(OwnEvent):
    """The agent itself finds that the attempt has failed here."""

    attempt: int
    reason: str
    error: str
    rank: Optional[int] = None
    silent: float = 0.0
    """For how long the rank had made no progress (seconds)."""


Event = Union[OwnEvent, Ack, Stop, Collect, Hung, Patience, Mismatch, Modules, Environment]
