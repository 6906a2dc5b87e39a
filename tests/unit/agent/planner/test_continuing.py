"""In a continued attempt, the agent wakes some ranks, kills and restarts others, and reports on all of them."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.ranks import CONTINUE_SECONDS, LEAVING_SECONDS
from trainmaster_operator.agent.planner.state import LeaderContact, MasterContact
from trainmaster_operator.wire.joining import Collect, Stop
from trainmaster_operator.wire.limits import ALONE_SECONDS
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, ProgressLine

from .simulated import UNWATCHED, WATCHED, Agent, assignment, continued

KILLED = Ending(137, signal.SIGKILL)
FAR = LeaderContact(0, True, MasterContact(False, False, "unknown"))


def pair(contact: LeaderContact | None = None, **environ: str) -> Agent:
    """Returns worker 1 with ranks 2 and 3, forked as pids 12 and 13. Both run and can continue."""
    agent = Agent(NPROC_PER_NODE="2", **environ)
    agent.forks = agent.wraps_ranks = True
    if contact is not None:
        agent.contact = contact
        agent.give(events.LeaderContactChanged(contact))
    agent.run()
    agent.give(events.RankStarted(0, 12), events.RankStarted(1, 13), events.RanksUp(1))
    return says(agent, {0: "able", 1: "able"})


def says(agent: Agent, words: dict[int, str], groups: dict[int, int] | None = None) -> Agent:
    return agent.give(events.ContinuingChanged(agent.state.started, words, groups or {}))


def single(**environ: str) -> Agent:
    """Returns worker 1 with a single rank, which can continue."""
    agent = Agent(**environ).run().give(events.RanksUp(1))
    return says(agent, {0: "able"})


def assign(agent: Agent, attempt: int, *absent: int, continues: int = 1) -> Agent:
    return agent.give(events.AssignmentReceived(continued(attempt, *absent, continues=continues)))


def report(agent: Agent) -> Report:
    assert agent.state.published is not None and agent.state.published == agent.state.report
    return agent.state.published


def signalled(agent: Agent) -> list[tuple[int, ...]]:
    return [action.pids for action in agent.all(actions.Terminate)]


def regrouped(agent: Agent) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(action.killed, action.restarted) for action in agent.all(actions.Regroup)]


def test_a_worker_is_able_when_all_its_ranks_say_so() -> None:
    agent = says(pair(), {0: "able"})
    assert (report(agent).state, report(agent).able) == ("Running", False)
    assert report(says(agent, {0: "able", 1: "able"})).able
    assert report(says(agent, {0: "able", 1: "idle"})).able
    assert not report(says(agent, {0: "able", 1: "ready"})).able
    assert report(says(agent, {0: "able", 1: "able"})).able
    assert not report(agent.give(events.ProcessEnded(13, Ending(0)))).able, "one has finished"


def test_ranks_of_torchruns_cannot_go_on_whatever_they_say() -> None:
    agent = Agent(NPROC_PER_NODE="2")
    agent.wraps_ranks = True
    agent.run().give(events.RankStarted(0, 12), events.RankStarted(1, 13), events.RanksUp(1))
    assert not report(says(agent, {0: "able", 1: "able"})).able
    assign(agent, 2, 0)
    assert agent.all(actions.Adopt) == [] and len(signalled(agent)) == 1


def test_the_others_live_on_for_a_moment_after_a_rank_has_failed_and_are_then_stopped() -> None:
    agent = pair().give(events.ProcessEnded(13, KILLED))
    failed = report(agent)
    assert (failed.state, failed.rank, failed.signal, failed.able) == ("Failed", 3, 9, True)
    assert [action.pid for action in agent.all(actions.KillRemains)] == [13]
    assert signalled(agent.wait(CONTINUE_SECONDS - 0.01)) == []
    assert signalled(agent.wait(0.02)) == [(12,)]
    assert not report(agent).able


@pytest.mark.parametrize(
    "agent", [pair(UNWATCHED), says(pair(), {1: "able"})], ids=["nobody watches", "the other can't go on"]
)
def test_the_others_are_stopped_at_once_where_nobody_would_continue_them(agent: Agent) -> None:
    agent.wait(5).give(events.ProcessEnded(13, KILLED))
    assert signalled(agent) == [(12,)] and not report(agent).able


def test_the_others_continue_when_a_rank_that_raised_an_exception_has_exited() -> None:
    agent = pair().give(events.RankRaised(0, 12, "ValueError: bad"))
    assert (report(agent).state, report(agent).rank, report(agent).able) == ("Failed", 2, True)
    assign(agent, 2, 2)
    assert regrouped(agent) == [], "it runs what is registered with atexit"
    agent.give(events.ProcessEnded(12, Ending(1)))
    assert regrouped(agent) == [((), (0,))] and agent.all(actions.KillRemains) == [actions.KillRemains(12)]
    late = assign(pair().give(events.RankRaised(0, 12, "ValueError: bad")), 2, 2).wait(LEAVING_SECONDS)
    assert regrouped(late) == [((12,), (0,))], "it is killed if it takes long"


def test_a_present_rank_that_has_raised_an_exception_meanwhile_fails_the_new_attempt() -> None:
    agent = pair().give(events.RankRaised(0, 12, "ValueError: bad"))
    assign(agent, 2, 0).wait(LEAVING_SECONDS)
    assert (report(agent).attempt, report(agent).state, report(agent).rank) == (2, "Failed", 2)
    agent.give(events.ProcessEnded(12, Ending(1)))
    assert report(agent).error == "ValueError: bad"


def test_a_continued_attempt_is_adopted_saved_published_and_then_the_ranks_are_woken() -> None:
    agent = assign(pair().give(events.ProcessEnded(13, KILLED)), 2, 3)
    names = [name for name in agent.names if name in ("Adopt", "PublishReport", "Regroup")]
    assert names[-3:] == ["Adopt", "PublishReport", "Regroup"]
    assert regrouped(agent) == [((), (1,))]
    assert (report(agent).state, report(agent).attempt, report(agent).able) == ("Starting", 2, True)
    assert agent.saved is not None and agent.saved.report.attempt == 2
    assert report(says(agent, {0: "able"}, {0: 1})).state == "Starting"
    assert report(says(agent, {0: "able"}, {0: 2})).state == "Running"
    assert signalled(agent.wait(60)) == [], "the stop is cancelled"
    says(agent.give(events.RankStarted(1, 14)), {0: "able", 1: "ready"}, {0: 2})
    assert (report(agent).state, report(agent).able, report(agent).ready) == ("Running", True, True)
    assign(agent, 3)
    assert regrouped(agent)[1:] == [((), ())], "who waited to join is woken too"
    assert (report(agent).state, report(agent).able) == ("Starting", False), "who joins has no state yet"
    assert report(says(agent, {0: "able", 1: "able"}, {0: 3, 1: 3})).state == "Running"
    assert [action.assignment.attempt for action in agent.all(actions.Launch)] == [1]


def test_a_rank_that_is_absent_and_lives_is_killed_and_started_again() -> None:
    """A stopped process keeps its sockets, and its peers wait for it."""
    agent = assign(pair(), 2, 2)
    assert regrouped(agent) == [((12,), (0,))]
    agent.give(events.ProcessEnded(12, KILLED))
    assert agent.all(actions.ExamineRank) == [], "its end is no failure of the next process"
    assert report(says(agent.give(events.RankStarted(0, 14)), {0: "ready", 1: "able"})).ready


def test_a_rank_that_waits_to_join_goes_on_waiting_through_another_fault() -> None:
    agent = assign(pair().give(events.ProcessEnded(13, KILLED)), 2, 3).give(events.RankStarted(1, 14))
    says(agent, {0: "able", 1: "ready"}, {0: 2})
    assign(agent, 3, 1, 3)
    assert regrouped(agent)[1:] == [((), ())] and report(agent).ready


def joiner(agent: Agent | None = None) -> Agent:
    """Returns an agent with rank 2, which trains in attempt 2, and rank 3 (pid 14), which is starting to join it."""
    agent = assign((agent or pair()).give(events.ProcessEnded(13, KILLED)), 2, 3).give(events.RankStarted(1, 14))
    return says(agent, {0: "able"}, {0: 2})


@pytest.mark.parametrize(
    ("happens", "reason", "error"),
    [
        (events.ProcessEnded(14, KILLED), "Signal", "killed by SIGKILL"),
        (events.ProcessEnded(14, Ending(1)), "Error", "ValueError: bad"),
        (events.ProcessEnded(14, Ending(0)), "Error", "it ended before it had joined the others"),
        (events.RankNotStarted(1, "cannot execute"), "LaunchError", "cannot execute"),
        (events.AttemptFailed(2, "Hung", "its stacks", 3), "Hung", "its stacks"),
    ],
)
def test_a_rank_that_fails_before_it_joins_is_started_again_alone(
    happens: events.Event, reason: str, error: str
) -> None:
    agent = joiner().give(happens)
    found = report(agent)
    assert (found.state, found.able, found.ready) == ("Running", True, False), "the others train on"
    assert (found.rank, found.reason) == (3, reason) and found.error.endswith(error)
    assert signalled(agent.wait(60)) == []
    agent.give(events.ProcessEnded(14, KILLED))
    assert report(agent) == found
    assign(agent, 3, 3)
    assert regrouped(agent)[1:] == [((), (1,))]
    assert (report(agent).reason, report(agent).rank) == ("", None)


def test_a_rank_of_the_group_that_fails_after_one_that_was_to_join_is_reported() -> None:
    agent = joiner().give(events.ProcessEnded(14, KILLED), events.ProcessEnded(12, Ending(1)))
    assert (report(agent).state, report(agent).rank, report(agent).exit_code) == ("Failed", 2, 1)


#: One worker has a rank that trains and one that joins; the other's only rank joins. Each with the joining rank's pid.
JOINERS = [(joiner, 3, 14), (lambda: assign(Agent(), 2, 1), 1, 1_001)]


@pytest.mark.parametrize(("begin", "rank", "pid"), JOINERS)
def test_a_rank_that_hangs_before_it_joins_is_killed(begin: Callable[[], Agent], rank: int, pid: int) -> None:
    agent = begin().give(events.AttemptFailed(2, "Hung", "its stacks", rank))
    assert [action.pids for action in agent.all(actions.KillProcesses)] == [(pid,)]
    agent.give(events.ProcessEnded(pid, KILLED))
    assert report(agent).reason == "Hung"


@pytest.mark.parametrize(("begin", "rank", "pid"), JOINERS)
def test_one_that_hung_is_started_again_though_its_end_has_not_been_seen(
    begin: Callable[[], Agent], rank: int, pid: int
) -> None:
    agent = begin().give(events.AttemptFailed(2, "Hung", "its stacks", rank))
    assign(agent, 3, rank)
    killed, restarted = regrouped(agent)[-1]
    assert killed == (pid,) and len(restarted) == 1
    before = report(agent)
    assert report(agent.give(events.ProcessEnded(pid, KILLED))) == before


def test_a_workers_only_rank_that_ends_with_0_before_it_joins_has_failed() -> None:
    agent = assign(Agent(), 2, 1)
    agent.end(Ending(0))
    assert (report(agent).state, report(agent).exit_code) == ("Failed", 0)


def test_ranks_that_wait_to_join_end_with_the_last_one_of_the_group() -> None:
    agent = assign(pair().give(events.ProcessEnded(13, KILLED)), 2, 3).give(events.RankStarted(1, 14))
    says(agent, {0: "able", 1: "ready"}, {0: 2})
    agent.give(events.ProcessEnded(12, Ending(0)))
    assert agent.all(actions.Sweep)
    agent.give(events.ProcessEnded(14, KILLED))
    assert not report(agent).reason
    assert report(agent.give(events.RunEmptied())).state == "Finished"


def test_a_present_rank_that_has_ended_meanwhile_fails_the_new_attempt() -> None:
    """The operator continued without another worker's rank before it learned of this one's end."""
    agent = assign(pair().give(events.ProcessEnded(13, KILLED)), 2, 0)
    found = report(agent)
    assert (found.attempt, found.state, found.rank, found.signal, found.able) == (2, "Failed", 3, 9, True)
    assign(agent, 3, 0, 3)
    assert (report(agent).attempt, report(agent).state) == (3, "Starting")


def test_a_worker_whose_only_rank_had_ended_says_of_the_new_attempt_what_was_known() -> None:
    agent = single().end(KILLED)
    assert not report(agent).able
    assign(agent, 2, 0)
    found = report(agent)
    assert (found.attempt, found.state, found.reason, found.rank) == (2, "Failed", "Signal", 1)
    assert agent.all(actions.Adopt) == [] and agent.saved is not None and agent.saved.report == found


def test_an_agent_without_the_ranks_that_a_continued_attempt_names_is_lost() -> None:
    agent = assign(Agent(), 2)
    assert (report(agent).attempt, report(agent).state, report(agent).reason) == (2, "Failed", "AgentLost")
    assert agent.all(actions.Begin) == []


@pytest.mark.parametrize("uid", ["uid-1", ""])
def test_absent_ranks_are_started_to_join_though_worker_0_is_gone(uid: str) -> None:
    agent = Agent(contact=FAR)
    agent.give(events.AssignmentReceived(continued(2, 1, uids=["uid-0", uid])))
    assert [action.assignment.absent for action in agent.all(actions.Launch)] == [(1,)]
    assert report(agent.wait(2).give(events.RanksUp(2))).state == "Starting"
    says(agent, {0: "ready"})
    assert (report(agent).state, report(agent).able, report(agent).ready) == ("Starting", False, True)
    assign(agent, 3)
    assert regrouped(agent) == [((), ())]
    assert (report(agent).attempt, report(agent).able) == (3, False)


def test_a_worker_all_of_whose_ranks_are_absent_kills_them_at_once_and_prepares_others() -> None:
    agent = assign(pair(), 2, 2, 3)
    assert signalled(agent) == [] and len(agent.all(actions.Sweep)) == 1
    assert agent.all(actions.Adopt) == []
    agent.give(*(events.ProcessEnded(pid, KILLED) for pid in (12, 13)), events.RunEmptied())
    assert [action.assignment.attempt for action in agent.all(actions.Launch)] == [1, 2]


def test_a_preparation_to_join_goes_on_through_another_fault() -> None:
    agent = Agent(TRAINMASTER_SETUP="pip install x")
    assign(assign(agent, 2, 1), 3, 0, 1)
    assert agent.all(actions.CancelSetup) == [] and report(agent).attempt == 3
    agent.give(events.SetupEnded({"A": "1"}))
    assert [action.assignment.attempt for action in agent.all(actions.Launch)] == [3]


def test_another_workers_failure_stops_nobody_that_only_waits_to_join() -> None:
    for agent in (assign(Agent(), 2, 1), assign(Agent(TRAINMASTER_SETUP="x"), 2, 1)):
        agent.give(Stop(2, 0.4, 0.0, Report(2, 0, "uid-0", "Failed"))).wait(60)
        assert signalled(agent) == [] and report(agent).state == "Starting"


def test_a_failure_elsewhere_stops_able_ranks_when_the_leader_says_so() -> None:
    agent = pair().give(Stop(1, 0.4, CONTINUE_SECONDS, None)).wait(CONTINUE_SECONDS - 0.01)
    assert signalled(agent) == []
    assert signalled(agent.wait(0.02)) == [(12, 13)]
    agent = pair().give(Stop(1, 0.4, CONTINUE_SECONDS, None), Stop(1, 0.4, 0.0, None))
    assert signalled(agent) == [(12, 13)]
    assign(agent, 2, 0)
    assert agent.all(actions.Adopt) == [], "who has been sent SIGTERM goes on nowhere"


@pytest.mark.parametrize("next_one", [assignment(2), assignment(1, "Hold"), continued(5, 3, continues=4)])
def test_an_attempt_that_does_not_continue_this_one_stops_it_at_once(next_one: object) -> None:
    agent = pair().give(events.ProcessEnded(13, KILLED))
    agent.give(events.AssignmentReceived(next_one))  # type: ignore[arg-type]
    assert signalled(agent) == [(12,)] and agent.all(actions.Adopt) == []


def test_a_report_that_cannot_be_saved_ends_the_ranks() -> None:
    agent = pair()
    agent.saving_fails = True
    assign(agent, 2, 0)
    assert (report(agent).attempt, report(agent).reason) == (2, "LaunchError")
    assert regrouped(agent) == [] and signalled(agent) == [(12, 13)]


# Hangs


def test_a_hung_rank_is_killed_and_the_others_live_on() -> None:
    agent = pair().give(events.AttemptFailed(1, "Hung", "rank 3 is stopped", 3))
    assert [action.pids for action in agent.all(actions.KillProcesses)] == [(13,)]
    agent.give(events.ProcessEnded(13, KILLED))
    assert (report(agent).reason, report(agent).rank, report(agent).able) == ("Hung", 3, True)
    assert signalled(agent) == []
    assign(agent, 2, 3)
    assert regrouped(agent) == [((), (1,))]


def test_the_only_rank_of_a_worker_is_killed_too_when_it_hangs() -> None:
    agent = single().give(events.AttemptFailed(1, "Hung", "rank 1 is stopped", 1))
    assert [action.pids for action in agent.all(actions.KillProcesses)] == [(agent.pid,)]


def test_ranks_that_wait_to_join_are_no_part_of_a_diagnosis() -> None:
    agent = assign(Agent(), 2, 1).give(Collect(2, 100))
    answer = agent.all(actions.SendToLeader)[-1].message
    assert isinstance(answer, EvidenceLine) and answer.ranks == {}
    assert agent.all(actions.Diagnose) == []


# SIGTERM


def test_able_ranks_of_an_agent_that_leaves_train_until_others_go_on_without_them() -> None:
    agent = pair(TRAINMASTER_GRACE_SECONDS="25").give(events.TerminationRequested())
    assert signalled(agent.wait(CONTINUE_SECONDS - 0.01)) == []
    assign(agent, 2, 2, 3)
    assert len(agent.all(actions.Sweep)) == 1
    agent.give(*(events.ProcessEnded(pid, KILLED) for pid in (12, 13)), events.RunEmptied())
    assert (agent.exit_code, agent.termination_message.state) == (143, "Stopped")


def test_they_are_stopped_as_planned_when_nobody_continues_the_attempt() -> None:
    agent = pair(TRAINMASTER_GRACE_SECONDS="25").give(events.TerminationRequested()).wait(CONTINUE_SECONDS)
    (stop,) = agent.all(actions.Terminate)
    assert stop.planned_seconds == 25 - CONTINUE_SECONDS


def test_they_are_stopped_at_once_when_nobody_would_continue_the_attempt() -> None:
    agent = pair(UNWATCHED, TRAINMASTER_GRACE_SECONDS="25").give(events.TerminationRequested())
    assert signalled(agent) == [(12, 13)]


def test_most_of_a_short_grace_period_is_left_to_them() -> None:
    agent = pair(TRAINMASTER_GRACE_SECONDS="2").give(events.TerminationRequested())
    assert signalled(agent.wait(0.51)) == [(12, 13)]


def test_they_take_part_in_a_continued_attempt_that_still_counts_on_them() -> None:
    agent = assign(pair().give(events.TerminationRequested()), 2, 0)
    assert regrouped(agent) == [((), ())]
    assert signalled(agent.wait(CONTINUE_SECONDS)) == [(12, 13)]


# Beyond a broken network


def test_ranks_that_train_without_all_other_workers_end_when_nobody_watches_them_any_more() -> None:
    """Their pod is considered lost, and others train in their place."""
    agent = assign(pair(), 2, 0, 1)
    says(agent, {0: "able", 1: "able"}, {0: 2, 1: 2})
    agent.give(events.LeaderContactChanged(UNWATCHED))
    assert signalled(agent.wait(ALONE_SECONDS - 1)) == []
    agent.give(events.LeaderContactChanged(WATCHED)).wait(2)
    agent.give(events.LeaderContactChanged(UNWATCHED))
    assert signalled(agent.wait(ALONE_SECONDS - 1)) == [], "an operator that comes back is in time"
    assert signalled(agent.wait(2)) == [(12, 13)]
    assert report(agent).state == "Stopped"
    assert (
        report(agent).error == "no operator has watched its ranks for 120 s, and they trained without all other workers"
    )


def test_ranks_that_need_others_train_on_without_an_operator() -> None:
    for agent in (pair(), assign(pair(), 2, 0), assign(pair(), 2, 0, 2)):
        agent.give(events.LeaderContactChanged(UNWATCHED))
        assert signalled(agent.wait(100_000)) == []


# The return from the fault


def test_the_recovery_of_a_continued_attempt_is_timed_and_joining_is_none() -> None:
    agent = pair().give(Stop(1, 0.4, CONTINUE_SECONDS, None)).wait(0.2)
    assign(agent, 2, 0)
    line = ProgressLine(2, 1, {2: RankProgress(joined_at=agent.wall + 0.1, restored_at=agent.wall + 0.1)})
    agent.give(events.Progressed(line, agent.wall + 0.2))
    (published,) = [action.message for action in agent.all(actions.Publish)]
    assert isinstance(published, ProgressLine) and published.recovery is not None
    assert published.recovery.to_wire() == pytest.approx(
        {
            "detected": 0,
            "assigned": 0.2,
            "stopped": 0.2,
            "launched": 0.2,
            "joined": 0.3,
            "restored": 0.3,
            "firstStep": 0.4,
        }
    )
    assign(agent, 3).give(events.Progressed(line._replace(attempt=3), None))
    joined = agent.all(actions.Publish)[-1].message
    assert isinstance(joined, ProgressLine) and joined.recovery is None
