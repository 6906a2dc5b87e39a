"""The agent's state consists of immutable values, which only events and the steps of `plan` replace. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.planner.actions import Action, ExamineLauncher, ExamineRank, Regroup
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Environment, Modules
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine, Recovery

NEVER = float("inf")
NO_ASSIGNMENT = Assignment("", -1, (), None, (), 0, "Hold")
"""The value of `State.assignment` until an assignment has arrived."""


class Now(NamedTuple):
    """Now is the present time by two clocks."""

    steady: float
    """Seconds of the monotonic clock, for deadlines."""
    wall: float
    """Seconds since the epoch, for reports."""


class MasterContact(NamedTuple):
    """MasterContact is this worker's progress in reaching worker 0's agent."""

    reached: bool
    resolved: bool
    problem: str = ""
    """Text for people: worker 0's name, address and port, and the last error."""


class LeaderContact(NamedTuple):
    """LeaderContact is this worker's view of its leader."""

    leader: Optional[int] = None
    """The leading worker; None while unknown."""
    watched: bool = True
    """Whether an operator may be watching the leader; also true while the leader is unknown."""
    master: MasterContact = MasterContact(False, False, "not tried yet")
    gathered: int = 0
    """The newest attempt whose workers have all joined the leader."""


class SavedReport(NamedTuple):
    """SavedReport is the last report of the newest attempt started here, from the state folder."""

    report: Report
    exited: bool
    """Whether the agent has already exited to send this report; it doesn't exit twice for one report."""


class Preparation(NamedTuple):
    """Preparation is an attempt that waits for the setup line's environment, and for contact with worker 0."""

    assignment: Assignment
    node_rank: int
    begun_at: float
    resolved_at: Optional[float] = None
    """When worker 0's name was first resolved."""


class Run(NamedTuple):
    """Run describes the processes of an attempt. Times are on the monotonic clock."""

    launcher: int
    """The launcher's pid; 0 if there is none, because the ranks are forked from the warm process."""
    wraps_ranks: bool
    first_rank: int
    """The global rank of local rank 0."""
    ranks: Mapping[int, int] = {}
    """The known pids by local rank."""
    awaited: int = 0
    """The number of forked ranks; 0 if a launcher waits for the ranks."""
    endings: Mapping[int, Optional[Ending]] = {}
    """The ranks' ends, in the order in which they were seen. None: the launcher reaped the rank, so only it knows how
    the rank ended."""
    launcher_ending: Optional[Ending] = None
    examinations: tuple[Union[ExamineRank, ExamineLauncher], ...] = ()
    terminate_at: Optional[float] = None
    """When the ranks are sent SIGTERM."""
    grace: float = 0.0
    """The seconds from SIGTERM to SIGKILL."""
    terminated: bool = False
    planned: bool = False
    """Whether a planned stop ended the ranks, so that their exceptions don't count as causes."""
    raised: Mapping[int, float] = {}
    """When ranks reported the exception that ends them, by local rank. Such a rank exits by itself."""
    watched: frozenset[int] = frozenset()
    """Pids of processes that would have reported a process group of torch."""
    met: bool = False
    """Whether a process has reported that it has formed a group with other ranks."""
    launched_at: float = 0.0
    late: tuple[int, ...] = ()
    """Ranks that started after SIGTERM was sent."""
    kill_at: float = NEVER
    """When to check next which ranks still delay SIGKILL."""
    grace_ends_at: float = NEVER
    """When ranks that aren't writing their state get SIGKILL."""
    last_kill_at: float = NEVER
    """When even ranks that are writing their state get SIGKILL, because the job's own grace is over."""
    saving: Mapping[int, float] = {}
    """When ranks began to write their state, by local rank."""
    spared: Mapping[int, float] = {}
    """When SIGKILL no longer waits for a rank, by local rank."""
    sweeping: bool = False
    emptied: bool = False
    """Whether no process is left."""
    provoked: bool = False
    """Whether a hung rank was ended to make it print its stacks. If so, no end of a rank is classified any more."""
    conclude_at: Optional[float] = None
    continuable: bool = False
    """Whether the agent has started the ranks itself, so that they can continue in another attempt."""
    continued: bool = False
    """Whether the attempt is a continued one."""
    present: tuple[int, ...] = ()
    """Local ranks that are in the attempt's group."""
    absent: tuple[int, ...] = ()
    """Local ranks that aren't in the attempt's group."""
    words: Mapping[int, str] = {}
    """The ranks' readiness to continue, `able` or `ready`, by local rank."""
    groups: Mapping[int, int] = {}
    """The attempt of each rank's group, if the rank reports it, by local rank."""

    @property
    def stopping(self) -> bool:
        """Returns whether the ranks were sent SIGTERM, or soon will be."""
        return self.terminated or self.terminate_at is not None

    @property
    def launcher_knows_more(self) -> bool:
        """Returns whether a rank has ended and only the launcher knows how."""
        return None in self.endings.values()

    @property
    def done(self) -> bool:
        """Returns whether the launcher has ended, or all ranks if there is none."""
        if self.launcher:
            return self.launcher_ending is not None
        # Once all ranks of the group have ended, ranks that wait to join have no peers left.
        return len(self.endings) >= self.awaited or (bool(self.present) and set(self.present) <= set(self.endings))

    @property
    def alone(self) -> bool:
        """Returns whether all ranks would have reported a process group, and none has."""
        return bool(self.ranks) and not self.met and self.watched.issuperset(self.ranks.values())

    @property
    def leaving(self) -> list[int]:
        """Returns the ranks that have reported an exception, but haven't been seen to end."""
        return [local_rank for local_rank in self.raised if local_rank not in self.endings]

    @property
    def living(self) -> list[int]:
        """Returns the pids of the ranks that haven't been seen to end."""
        return [pid for local_rank, pid in self.ranks.items() if local_rank not in self.endings]


class CodeState(NamedTuple):
    """CodeState describes the folder of the user's code. Archives are identified by their digests."""

    has: str = ""
    """The archive in the folder; empty if there is none, or while it is being replaced."""
    before: str = ""
    """The archive that was in the folder before."""
    wanted: str = ""
    """The archive that was requested last."""
    problem: str = ""
    """Why the requested archive can't be unpacked."""


class Warm(NamedTuple):
    """Warm describes the process that forks ranks."""

    runs: bool = False
    failures: int = 0
    """The number of failures in a row without a successful fork of an attempt's ranks."""
    lacking: int = 0
    """The attempt for which the warm process lacked something."""
    modules: Optional[Modules] = None
    """The modules to import in addition to torch and those that the job names; None: unknown."""
    ending: bool = False
    """Whether the process was killed but hasn't ended yet. No attempt may use such a process."""
    hopeless: bool = False
    """Whether another warm process would fail too."""


class Way(NamedTuple):
    """Way contains the times of one recovery in seconds since the epoch, because ranks report their times so."""

    attempt: int = -1
    """The attempt that ended; -1 before the first fault."""
    fault_at: float = 0.0
    detected_at: float = 0.0
    assigned_at: Optional[float] = None
    stopped_at: Optional[float] = None
    launched_at: Optional[float] = None

    def assigned(self, attempt: int, at: float) -> Way:
        return self._replace(assigned_at=at) if attempt > self.attempt and self.assigned_at is None else self

    def stopped(self, attempt: int, at: float) -> Way:
        return self._replace(stopped_at=at) if attempt == self.attempt else self

    def launched(self, attempt: int, at: float) -> Way:
        return self._replace(launched_at=at) if attempt > self.attempt and self.launched_at is None else self


class State(NamedTuple):
    """State contains everything that influences the agent's next actions."""

    settings: AgentSettings
    assignment: Assignment = NO_ASSIGNMENT
    """The newest assignment."""
    applied: Assignment = NO_ASSIGNMENT
    """The assignment that was last applied to the leader's table and to the follower."""
    contact: LeaderContact = LeaderContact()
    started: int = 0
    """The newest attempt that was started in this pod, by this agent or an earlier one."""
    preparation: Optional[Preparation] = None
    run: Optional[Run] = None
    regrouping: Optional[Regroup] = None
    environ: Optional[Mapping[str, str]] = None
    """The environment after the setup line, which runs once in an agent's life; None while it isn't known."""
    setup_runs: bool = False

    code: CodeState = CodeState()
    warm: Warm = Warm()

    report: Optional[Report] = None
    """The last report of the newest attempt that was started here, or `Waiting`."""
    previous: Optional[Report] = None
    """The last report of the previous attempt, kept for a new leader, which may not have received it."""
    saved: Optional[SavedReport] = None
    published: Optional[Report] = None
    unflushed: bool = False
    """Whether the ranks' progress must be read once more."""
    progress: Optional[ProgressLine] = None
    """The newest line of progress."""
    way: Way = Way()
    """The times from the last fault to the next attempt's first step."""
    environment: Optional[Environment] = None
    """The environment of the attempt's ranks, once it is known."""
    printed_environment: str = ""
    """The environment as a rank printed it, with its device and backend."""

    ended_at: float = 0.0
    """When this worker's attempt ended, on the monotonic clock."""
    acknowledged: int = 0
    """The newest attempt whose report an operator has recorded."""
    unwatched_at: Optional[float] = None
    """When the last operator stopped watching; None while an operator watches."""
    known_leader: Optional[int] = None
    new_leader_until: float = 0.0
    """Until this time, an operator is assumed to watch the new leader soon."""

    outbox: tuple[Action, ...] = ()
    """Actions to perform once, in this order, before all other actions."""
    terminating: bool = False
    """Whether SIGTERM has arrived; nothing is started after it."""
    exit_code: Optional[int] = None
    """The exit code, once it is decided that the process ends."""

    @property
    def ended(self) -> Optional[Report]:
        """Returns the final report of the newest attempt started here; None while it hasn't ended."""
        report = self.report
        return report if report is not None and report.attempt == self.started and report.ended else None

    def change_run(self, change: Callable[[Run], Run]) -> State:
        return self if self.run is None else self._replace(run=change(self.run))

    @property
    def ranks_are_alone(self) -> bool:
        """Returns whether this worker's ranks haven't met any other rank of a group of several ranks."""
        processes = self.settings.processes
        return self.run is not None and self.run.alone and self.assignment.world_size(processes) > 1

    @property
    def node_rank(self) -> Optional[int]:
        """Returns this worker's NODE_RANK in the newest assignment; None if this worker runs no ranks in it."""
        assignment, settings = self.assignment, self.settings
        return assignment.node_rank(settings.worker, settings.pod_uid) if assignment.state == "Run" else None

    @property
    def present(self) -> tuple[int, ...]:
        """Returns this worker's local ranks in the newest assignment's group; empty if the worker runs no ranks."""
        node_rank = self.node_rank
        return () if node_rank is None else self.assignment.present(node_rank, self.settings.processes)


def measured(way: Way, line: ProgressLine, first_step_at: Optional[float]) -> Optional[Recovery]:
    """Returns the finished phases of the recovery that led to an attempt; None if no fault preceded it."""
    if way.attempt < 0 or line.attempt != way.attempt + 1:
        return None
    ranks = line.ranks.values()
    moments = (
        way.detected_at,
        way.assigned_at,
        way.stopped_at,
        way.launched_at,
        _last(rank.joined_at for rank in ranks),
        _last(rank.restored_at for rank in ranks),
        first_step_at,
    )
    # If the clock was set back, a phase could seem to end before the fault.
    return Recovery(*(None if at is None else max(0.0, at - way.fault_at) for at in moments))


def _last(moments: Iterable[Optional[float]]) -> Optional[float]:
    """Returns the latest time; None if any of the times is unknown."""
    known = list(moments)
    return None if not known or None in known else max(at for at in known if at is not None)
