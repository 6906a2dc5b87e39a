"""Runs the planner alone: the executor only records actions, and processes, files and time are plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from tests.signer import GOOD, environment
from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.events import initial, update
from trainmaster_operator.agent.planner.plan import plan, wake_at
from trainmaster_operator.agent.planner.state import LeaderContact, MasterContact, Now, SavedReport, State
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.assignment import Assignment

A = TypeVar("A")
WORKER = 1
UID = "uid-1"
EPOCH = 1_700_000_000.0
MOST_ACTIONS = 200
"""A plan that continues for so long never ends."""
REACHED = MasterContact(True, True)
WATCHED = LeaderContact(0, True, REACHED)
UNWATCHED = LeaderContact(0, False, REACHED)


class Crash(Exception):
    """Signals that the agent's process was killed between two actions."""


def assignment(attempt: int = 1, state: str = "Run", **changes: Any) -> Assignment:
    """Returns an assignment for workers 0 and 1; `uids` are named from the second attempt on."""
    wire = {"uids": ["uid-0", UID] if attempt > 1 else None, **changes}
    return Assignment.parse({**GOOD, "attempt": attempt, "workers": [0, 1], "state": state, **wire})


def continued(attempt: int, *absent: int, continues: int = 1, **changes: Any) -> Assignment:
    """Returns an attempt that continues an earlier one without these ranks."""
    return assignment(attempt, continues=continues, absent=list(absent), **changes)


class Agent:
    """Simulates worker 1's agent through its restarts. `saved` is the report in the pod's emptyDir."""

    def __init__(self, saved: SavedReport | None = None, contact: LeaderContact = WATCHED, **environ: str) -> None:
        variables = {**environment(), "TRAINMASTER_WORKER": str(WORKER), "TRAINMASTER_POD_UID": UID, **environ}
        self.settings = read_settings(variables)
        self.contact = contact
        self.saved = saved
        self.now = 1_000.0
        self.performed: list[actions.Action] = []
        self.termination_message: Any = None
        self.evidence = "ValueError: bad"
        """The output of a rank that ended."""
        self.raised = False
        self.saving_fails = False
        self.saving: dict[int, float] = {}
        """The seconds that ranks ask for while they write their state."""
        self.launching_fails = False
        self.wraps_ranks = False
        self.forks = False
        """Whether ranks are ordered from the warm process."""
        self.crash_after: int | None = None
        """The process is killed after so many more actions."""
        self.life = 0
        self.start()

    def start(self) -> None:
        """Starts a new life of the agent."""
        self.life += 1
        self.pid = 1_000 * self.life
        self.state = initial(self.settings, {"PATH": "/bin"}, self.saved, self._now())
        self._carry_out()
        self.give(events.LeaderContactChanged(self.contact))

    def give(self, *given: events.Event) -> Agent:
        """Lets events happen, one after the other."""
        for event in given:
            self.state = update(self.state, event, self._now())
            self._carry_out()
        return self

    def wait(self, seconds: float) -> Agent:
        """Lets time pass, from deadline to deadline, as the executor does."""
        until = self.now + seconds
        while True:
            deadline = wake_at(self.state, self._now())
            if deadline is None or deadline > until:
                break
            self.now = deadline
            self.give(events.DeadlinePassed())
        self.now = until
        return self.give(events.DeadlinePassed())

    def run(self, attempt: int = 1, **changes: Any) -> Agent:
        """Brings an attempt's ranks up."""
        return self.give(events.AssignmentReceived(assignment(attempt, **changes)))

    def end(self, ending: Ending) -> Agent:
        """Ends the only rank, so that nothing is left."""
        return self.give(events.ProcessEnded(self.pid, ending), events.RunEmptied())

    def all(self, kind: type[A]) -> list[A]:
        """Returns the actions of a kind, in the order in which they were performed."""
        return [action for action in self.performed if isinstance(action, kind)]

    @property
    def names(self) -> list[str]:
        """Returns the names of the actions that were performed."""
        return [type(action).__name__ for action in self.performed]

    @property
    def exit_code(self) -> int | None:
        return self.state.exit_code

    @property
    def wall(self) -> float:
        return EPOCH + self.now

    def _now(self) -> Now:
        return Now(self.now, self.wall)

    def _carry_out(self) -> None:
        for action in self._planned():
            if self.crash_after is not None:
                self.crash_after -= 1
                if self.crash_after < 0:
                    raise Crash
            self.performed.append(action)
            result = self._perform(action)
            if result is not None:
                self.state = update(self.state, result, self._now())

    def _planned(self) -> Iterator[actions.Action]:
        for _ in range(MOST_ACTIONS):
            self.state, planned = plan(self.state, self._now())
            if not planned:
                return
            yield from planned
        raise AssertionError(f"the plan never ends: {self.names[-20:]}")

    def _perform(self, action: actions.Action) -> events.Event | None:
        if isinstance(action, (actions.Begin, actions.Adopt)):
            if self.saving_fails:
                return events.SaveFailed("cannot write /state/saved-report.json: No space left on device")
            self.saved = SavedReport(action.report, False)
        elif isinstance(action, actions.SaveReport) and not self.saving_fails:
            self.saved = SavedReport(action.report, action.exited)
        elif isinstance(action, actions.ApplyAssignment):
            return events.LeaderContactChanged(self.contact)
        elif isinstance(action, actions.Launch):
            if self.launching_fails:
                return events.LaunchFailed("command not found: 'x' is in no folder of PATH")
            self.pid += 1
            first = action.assignment.first_rank(action.node_rank, self.settings.processes)
            if self.forks:
                return events.Launched(0, True, first, True)
            return events.Launched(self.pid, self.wraps_ranks, first, not self.wraps_ranks)
        elif isinstance(action, actions.ExamineRank):
            return events.RankExamined(
                action.local_rank, action.ending, action.was_ended, self.raised, self.evidence, 0
            )
        elif isinstance(action, actions.ExamineLauncher):
            return events.LauncherExamined(action.ending, self.evidence, 0)
        elif isinstance(action, actions.FindSavingRanks):
            return events.SavingRanksFound(dict(self.saving))
        elif isinstance(action, actions.Conclude):
            return events.AttemptFailed(self.state.started, "Hung", "its stacks", 1)
        elif isinstance(action, actions.WriteTerminationMessage):
            self.termination_message = action.report
        return None


def idle(state: State) -> bool:
    """Returns whether no process of an attempt runs or is prepared."""
    return state.run is None and state.preparation is None
