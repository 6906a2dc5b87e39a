"""Events come from sockets, processes, files, timers and signals, through the executor's queue.

The executor handles them one by one (`update.update`, then `plan.plan`). The leader's messages (`wire.joining`) serve
as events directly, and so does this worker's own `Environment`, once it is known. A few events are the immediate
results of the executor's actions (`Launched`, `RankExamined`, `SaveFailed` …).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.planner.state import Ending, LeaderContact
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Ack, Collect, Environment, Hung, Mismatch, Modules, Patience, Stop
from trainmaster_operator.wire.stream import ProgressLine


class AssignmentReceived(NamedTuple):
    """A verified assignment arrived: from the annotation's file, a push to this agent, or the leader."""

    assignment: Assignment


class TerminationRequested(NamedTuple):
    """SIGTERM has arrived."""


class DeadlinePassed(NamedTuple):
    """A deadline of `plan.wake_at` has passed."""


class LeaderContactChanged(NamedTuple):
    """The leader, the presence of an operator, or the contact with worker 0 has changed."""

    contact: LeaderContact


class LeaderJoined(NamedTuple):
    """A connection to a leader is open, and nothing has been sent on it yet."""


class CodeFetched(NamedTuple):
    """The folder of the user's code contains this archive's files."""

    digest: str


class CodeRefused(NamedTuple):
    """The archive didn't appear in time, or can't be unpacked."""

    digest: str
    error: str


class SetupEnded(NamedTuple):
    """The setup line has ended: its environment is known, or it has failed."""

    environ: Optional[Mapping[str, str]]
    exit_code: int = 0
    signal: Optional[int] = None
    error: str = ""


class SaveFailed(NamedTuple):
    """A report could not be written to the state folder."""

    error: str


class Launched(NamedTuple):
    """The launcher runs, or the warm process has been ordered to fork ranks."""

    pid: int
    """0: there is no launcher."""
    wraps_ranks: bool
    """Whether ranks announce themselves; if not, the launcher is the only known rank."""
    first_rank: int
    continuable: bool = False
    """Whether the agent has started the ranks itself, so that they can continue in another attempt."""


class LauncherStarted(NamedTuple):
    """The launcher has been started after all, because the warm process has forked no ranks."""

    pid: int


class NothingForked(NamedTuple):
    """The warm process has forked no ranks, and none are wanted any more."""


class RanksForked(NamedTuple):
    """The warm process has forked all ranks."""


KILLED = "killed"
"""The agent itself has ended the warm process, so the next one may work."""
FAILED = "failed"
"""The warm process ended by itself, was killed from outside, or didn't answer in time. Another one may work."""
LACKING = "lacking"
"""The warm process lacked something: memory, room on the disk, processes, or torch. It may work at the next attempt."""
HOPELESS = "hopeless"
"""Another warm process would fail too, because of the command, the Python, torch, or the ranks' need of memory."""


class WarmProcessKilled(NamedTuple):
    """The warm process was sent SIGKILL; `WarmProcessEnded` follows."""


class WarmProcessEnded(NamedTuple):
    """The warm process has ended, or couldn't be started."""

    verdict: str
    """The prospects of the next process: one of the four constants above."""


class ModulesLearned(NamedTuple):
    """The warm process has imported the modules of one of this worker's ranks at its first step."""

    modules: Modules


class LaunchFailed(NamedTuple):
    """The launcher couldn't be started."""

    error: str


class RankStarted(NamedTuple):
    """A rank has announced itself."""

    local_rank: int
    pid: int


class ProcessEnded(NamedTuple):
    """A child of the agent, or a watched rank, has ended."""

    pid: int
    ending: Optional[Ending]
    """None if the process's parent has reaped it, and this kernel doesn't show the status to others."""
    unseen: frozenset[int] = frozenset()
    """Pids of other ranks that have ended, but whose events haven't been handled yet."""


class RankExamined(NamedTuple):
    """An ended rank's output and files were examined."""

    local_rank: int
    ending: Ending
    was_ended: bool
    """Whether the agent or torchrun had ended the rank."""
    raised: bool
    """Whether the rank left an exception of its own, and not only because its peer was gone."""
    evidence: str
    oom_kills: int
    """Out-of-memory kills in this container since the attempt began."""


class LauncherExamined(NamedTuple):
    """An ended launcher's last output was examined."""

    ending: Ending
    evidence: str
    oom_kills: int


class EnvironmentPrinted(NamedTuple):
    """A rank has printed its environment."""

    attempt: int
    line: str


class StoreEnded(NamedTuple):
    """The process that serves torch's store to the ranks failed."""

    attempt: int
    ending: Ending
    evidence: str
    oom_kills: int


class SavingRanksFound(NamedTuple):
    """The check for ranks that are writing their state has ended."""

    seconds: Mapping[int, float]
    """The seconds that each rank requests, by local rank; 0 if the rank has written its state."""


class RunEmptied(NamedTuple):
    """The attempt has no processes left."""


class RanksUp(NamedTuple):
    """All ranks of this worker have been started and have shown a sign of life."""

    attempt: int


class ContinuingChanged(NamedTuple):
    """Ranks' readiness to continue has changed; both mappings are by local rank."""

    attempt: int
    words: Mapping[int, str]
    """`able` or `ready`."""
    groups: Mapping[int, int]
    """The attempt whose group each rank is in."""


class RankNotStarted(NamedTuple):
    """A joining rank couldn't be started."""

    local_rank: int
    error: str


class Progressed(NamedTuple):
    """There is a line of progress to publish."""

    line: ProgressLine
    first_step_at: Optional[float] = None
    """When all ranks of this worker had finished the attempt's first step (seconds since the epoch)."""


class RankProvoked(NamedTuple):
    """A hung rank was ended in a way that makes it print its stacks."""

    attempt: int


class AttemptFailed(NamedTuple):
    """The agent itself finds that the attempt has failed here."""

    attempt: int
    reason: str
    error: str
    rank: Optional[int] = None
    silent: float = 0.0
    """How long the rank had made no progress (seconds)."""


_FromOutside = Union[AssignmentReceived, TerminationRequested, DeadlinePassed, LeaderContactChanged, LeaderJoined]
_FromLeader = Union[Ack, Stop, Collect, Hung, Patience, Mismatch, Modules]
_BeforeRanks = Union[CodeFetched, CodeRefused, SetupEnded, SaveFailed, Environment, EnvironmentPrinted]
_Starts = Union[Launched, LaunchFailed, LauncherStarted, RankStarted, RankNotStarted, RanksUp]
_Forks = Union[NothingForked, RanksForked, WarmProcessKilled, WarmProcessEnded, ModulesLearned]
_Ends = Union[ProcessEnded, RankExamined, LauncherExamined, StoreEnded, SavingRanksFound, RunEmptied]
_Ranks = Union[ContinuingChanged, Progressed, RankProvoked, AttemptFailed]
Event = Union[_FromOutside, _FromLeader, _BeforeRanks, _Starts, _Forks, _Ends, _Ranks]
