"""Random histories run one worker, whose agent is killed between any two actions."""

from __future__ import annotations

import signal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.plan import plan
from trainmaster_operator.agent.planner.state import LeaderContact, MasterContact
from trainmaster_operator.wire.joining import Ack, Modules, Stop
from trainmaster_operator.wire.report import Report

from .simulated import Agent, Crash, assignment, continued, idle

ENDINGS = st.sampled_from([Ending(0), Ending(1), Ending(137, signal.SIGKILL), Ending(143, signal.SIGTERM)])
CONTACTS = st.builds(
    LeaderContact,
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.sampled_from([MasterContact(True, True), MasterContact(False, True), MasterContact(False, False)]),
)
ATTEMPTS = st.integers(1, 6)
SECONDS = st.sampled_from([0.1, 0.5, 3.0, 31.0])


class Histories(RuleBasedStateMachine):
    """Simulates one pod: its state folder outlives restarts of the agent, its processes don't."""

    def __init__(self) -> None:
        super().__init__()
        warm = {"TRAINMASTER_WARM_START": "true", "TRAINMASTER_LAUNCHER": "torchrun"}
        self.agent = Agent(TRAINMASTER_SETUP="true", NPROC_PER_NODE="2", TRAINMASTER_FIRST_STEP_TIMEOUT="20", **warm)
        self.agent.wraps_ranks = True
        self.current = assignment(1)
        self.checked = 0
        self.launched: list[int] = []
        self.running: int | None = None
        self.terminating = False
        self.reported: dict[int, Report] = {}
        self.is_asked_for = False
        """Whether the agent, since its last restart, has started a warm process or found out that it can't."""
        self.given_up = False
        self.pid = 100_000
        self.living: dict[int, int] = {}
        """The pids of ranks started since the agent's last restart whose end hasn't been seen, by local rank."""

    def give(self, *given: events.Event) -> None:
        for event in given:
            if self.agent.exit_code is not None:
                self.restart()
            self.terminating = self.terminating or isinstance(event, events.TerminationRequested)
            if isinstance(event, events.RunEmptied):
                self.running = None
            elif isinstance(event, events.RankStarted):
                self.living[event.local_rank] = event.pid
            elif isinstance(event, events.ProcessEnded):
                self.living = {rank: pid for rank, pid in self.living.items() if pid != event.pid}
            try:
                self.agent.give(event)
            except Crash:
                self.check()
                self.restart()
            self.check()

    def restart(self) -> None:
        """Restarts the container as the kubelet does; the agent reads the file with the assignment at once."""
        self.agent.crash_after, self.running, self.terminating = None, None, False
        self.is_asked_for = self.given_up = False
        self.living = {}
        self.agent.start()
        self.agent.give(events.AssignmentReceived(self.current))
        self.check()

    def check(self) -> None:
        """Checks the actions performed since the last check, in their order."""
        agent = self.agent
        for action in agent.performed[self.checked :]:
            if isinstance(action, actions.Terminate):
                assert 0 not in action.pids, "not the agent's own process group"
            if isinstance(action, (actions.Begin, actions.RunSetup, actions.WarmUp, actions.Launch)):
                assert not self.terminating, "nothing starts while terminating"
            if isinstance(action, actions.WarmUp):
                assert not agent.state.warm.ending, "one warm process at a time"
                assert not self.given_up, "what was given up for good isn't tried again"
                self.is_asked_for = True
            if isinstance(action, actions.Begin):
                assert action.report.attempt not in self.launched
                assert action.assignment.state == "Run"
            elif isinstance(action, actions.Launch):
                attempt = action.assignment.attempt
                assert self.running is None, "one attempt runs at a time"
                # Therefore only the job's spec decides whether a launcher starts the ranks (`RunProcesses`).
                assert self.is_asked_for, "ranks start when it is known whether they can be forked"
                assert attempt not in self.launched, "an attempt never runs twice here"
                assert agent.saved is not None
                assert agent.saved.report.attempt == attempt
                assert not (action.assignment.continues and action.assignment.present(1, 2)), "it only joins"
                self.launched.append(attempt)
                self.running = attempt
                self.living = {}
            elif isinstance(action, actions.Adopt):
                self.check_adopted(action)
            elif isinstance(action, actions.Regroup):
                self.check_regrouped(action)
            elif isinstance(action, (actions.PublishReport, actions.WriteTerminationMessage)):
                self.reported[action.report.attempt] = action.report
        self.checked = len(agent.performed)
        if agent.state.run is None:
            self.running = None

    def check_adopted(self, action: actions.Adopt) -> None:
        """Checks that running or prepared ranks belong to one attempt, and that an adopted run isn't being stopped."""
        state, attempt = self.agent.state, action.assignment.attempt
        assert attempt not in self.launched, "an attempt never runs twice here"
        assert action.assignment.continues is not None and self.agent.saved is not None
        if self.running is not None:
            self.launched.append(attempt)
            self.running = attempt
        continues_here = state.started == attempt and state.ended is None and not self.terminating
        assert not (continues_here and state.run is not None and state.run.stopping), "an adopted run isn't stopped"

    def check_regrouped(self, action: actions.Regroup) -> None:
        """Checks that a process is in one group only, and that nobody replaces a process that is alive."""
        assert self.reported[action.assignment.attempt].attempt == action.assignment.attempt, "published before"
        present = {self.living[rank] for rank in action.assignment.present(1, 2) if rank in self.living}
        assert not present & set(action.killed)
        for rank in action.restarted:
            assert not self.terminating, "nothing starts while terminating"
            assert self.living.pop(rank, None) in (None, *action.killed)

    @rule(
        absent=st.sets(st.integers(0, 3), max_size=3),
        uid=st.sampled_from([*["uid-1"] * 6, "", "another"]),
        skipped=st.sampled_from([1, 1, 1, 2]),
        older=st.booleans(),
    )
    def continue_the_attempt(self, absent: set[int], uid: str, skipped: int, older: bool) -> None:
        chain = self.current.continues or self.current.attempt
        before = max(1, chain - older)
        new = continued(self.current.attempt + skipped, *sorted(absent), continues=before, uids=["uid-0", uid])
        self.current = new
        self.give(events.AssignmentReceived(new))

    @initialize(is_up=st.booleans())
    def begin(self, is_up: bool) -> None:
        if is_up:
            self.bring_up_ranks_that_can_go_on()

    @rule()
    def bring_up_ranks_that_can_go_on(self) -> None:
        """Brings up ranks that can continue, because random rules seldom get so far."""
        self.agent.forks = True
        self.current = assignment(self.current.attempt + 1)
        self.give(events.AssignmentReceived(self.current))
        if self.agent.state.run is not None and self.agent.state.run.sweeping:
            self.give(events.RunEmptied())
        self.end_the_setup_line({"A": "1"})
        for local_rank in range(2):
            self.start_a_rank(local_rank)
        self.give(events.RanksUp(self.agent.state.started))
        self.say_that_ranks_can_go_on({0: "able", 1: "able"}, True)

    @rule(words=st.dictionaries(st.integers(0, 1), st.sampled_from(["able", "able", "ready"])), formed=st.booleans())
    def say_that_ranks_can_go_on(self, words: dict[int, str], formed: bool) -> None:
        groups = dict.fromkeys(words, self.agent.state.started) if formed else {}
        self.give(events.ContinuingChanged(self.agent.state.started, words, groups))

    @rule(local_rank=st.integers(0, 1))
    def fail_to_start_a_rank_again(self, local_rank: int) -> None:
        run = self.agent.state.run
        if run is not None and run.continued and local_rank in run.absent and local_rank not in run.ranks:
            self.give(events.RankNotStarted(local_rank, "cannot execute"))

    @rule(attempt=ATTEMPTS, held=st.booleans(), uid=st.sampled_from(["uid-1", "uid-1", "another"]))
    def assign(self, attempt: int, held: bool, uid: str) -> None:
        new = assignment(attempt, "Hold" if held else "Run", uids=["uid-0", uid])
        self.current = max(self.current, new, key=lambda each: (each.attempt, each.state == "Hold"))
        self.give(events.AssignmentReceived(new))

    @rule(contact=CONTACTS)
    def meet_a_leader(self, contact: LeaderContact) -> None:
        self.agent.contact = contact
        self.give(events.LeaderContactChanged(contact), events.LeaderJoined())

    @rule(attempt=ATTEMPTS, after=st.sampled_from([0.0, 0.4, 3.0]))
    def fail_elsewhere(self, attempt: int, after: float) -> None:
        self.give(Stop(attempt, 0.4, after, Report(attempt, 0, "uid-0", "Failed")))

    @rule(attempt=ATTEMPTS)
    def acknowledge(self, attempt: int) -> None:
        self.give(Ack(attempt))

    @rule(environ=st.sampled_from([{"A": "1"}, None]))
    def end_the_setup_line(self, environ: dict[str, str] | None) -> None:
        if self.agent.state.setup_runs:
            self.give(events.SetupEnded(environ, 0 if environ else 1))

    @rule(local_rank=st.integers(0, 1))
    def start_a_rank(self, local_rank: int) -> None:
        run = self.agent.state.run
        if run is not None and local_rank not in run.ranks:
            self.pid += 1
            self.give(events.RankStarted(local_rank, self.pid))

    @rule(ending=st.none() | ENDINGS, local_rank=st.integers(0, 1), raised=st.booleans(), broken=st.booleans())
    def end_a_rank(self, ending: Ending | None, local_rank: int, raised: bool, broken: bool) -> None:
        run = self.agent.state.run
        if run is not None and local_rank in run.ranks:
            self.agent.raised, self.agent.evidence = raised, "Connection reset by peer" if broken else "ValueError"
            self.give(events.ProcessEnded(run.ranks[local_rank], ending))

    @rule(local_rank=st.integers(0, 1), broken=st.booleans())
    def raise_an_exception(self, local_rank: int, broken: bool) -> None:
        run = self.agent.state.run
        if run is not None and local_rank in run.ranks:
            error = "RuntimeError: Connection reset by peer" if broken else "ValueError: bad"
            self.give(events.RankRaised(local_rank, run.ranks[local_rank], error))

    @rule(ending=ENDINGS)
    def end_the_launcher(self, ending: Ending) -> None:
        if self.agent.state.run is not None and self.agent.state.run.launcher:
            self.give(events.ProcessEnded(self.agent.state.run.launcher, ending))

    @rule(forks=st.booleans())
    def fork_the_next_ranks(self, forks: bool) -> None:
        self.agent.forks = forks

    @rule()
    def fork_nothing(self) -> None:
        """Forks no ranks: the warm process refused or was ended, so ranks start cold or not at all."""
        run = self.agent.state.run
        if run is not None and run.awaited and not run.ranks:
            self.give(events.NothingForked() if run.stopping else events.LaunchFailed("this image has no torch"))

    @rule(verdict=st.sampled_from([events.KILLED, events.FAILED, events.LACKING, events.HOPELESS]))
    def end_the_warm_process(self, verdict: str) -> None:
        if self.agent.state.warm.runs:
            self.give(events.WarmProcessEnded(verdict))
            self.given_up = self.agent.state.warm.hopeless

    @rule()
    def kill_the_warm_process(self) -> None:
        if self.agent.state.warm.runs:
            self.give(events.WarmProcessKilled())

    @rule()
    def fork_all_ranks(self) -> None:
        if self.agent.state.warm.runs and self.agent.state.run is not None:
            self.give(events.RanksForked())

    @rule()
    def learn(self) -> None:
        self.give(events.ModulesLearned(Modules(("torch._dynamo",))))

    @rule()
    def empty_the_run(self) -> None:
        run = self.agent.state.run
        if run is not None and run.sweeping and (run.launcher_ending is not None or not run.launcher):
            self.give(events.RunEmptied())

    @rule()
    def come_up(self) -> None:
        self.give(events.RanksUp(self.agent.state.started))

    @rule(saving=st.dictionaries(st.integers(0, 2), st.sampled_from([0.0, 0.1, 5.0, 1e9])))
    def write_state(self, saving: dict[int, float]) -> None:
        self.agent.saving = saving

    @rule()
    def provoke(self) -> None:
        self.give(events.RankProvoked(self.agent.state.started))

    @rule(attempt=ATTEMPTS)
    def hang(self, attempt: int) -> None:
        self.give(events.AttemptFailed(attempt, "Hung", "no progress", 2))

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        try:
            self.agent.wait(seconds)
        except Crash:
            self.restart()
        self.check()

    @rule()
    def terminate(self) -> None:
        self.give(events.TerminationRequested())

    @precondition(lambda self: self.agent.crash_after is None)
    @rule(actions_more=st.integers(0, 6))
    def crash_soon(self, actions_more: int) -> None:
        self.agent.crash_after = actions_more

    @invariant()
    def the_plan_is_carried_out(self) -> None:
        assert plan(self.agent.state, self.agent._now()) == (self.agent.state, ())

    @invariant()
    def every_end_is_saved_and_published_or_made_by_exiting(self) -> None:
        ended = self.agent.state.ended
        if ended is not None:
            assert self.reported[ended.attempt] == ended
            assert self.agent.saved is not None
            assert self.agent.saved.report == ended

    def teardown(self) -> None:
        """After any history: without an operator, the agent reports every end by exiting, and SIGTERM ends it."""
        agent = self.agent
        if agent.exit_code is not None:
            self.restart()
        agent.crash_after = None
        self.give(events.LeaderContactChanged(LeaderContact(0, False, MasterContact(True, True))))
        self.give(events.TerminationRequested())
        if agent.state.run is not None:
            agent.wait(60)
            if agent.state.run.launcher:
                self.give(events.ProcessEnded(agent.state.run.launcher, Ending(137, signal.SIGKILL)))
            self.give(events.RunEmptied())
        assert idle(agent.state)
        assert agent.exit_code is not None
        if agent.state.ended is not None:
            assert agent.termination_message == agent.state.ended


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=settings.default.max_examples * 6 // 5, stateful_step_count=40, deadline=None
)
