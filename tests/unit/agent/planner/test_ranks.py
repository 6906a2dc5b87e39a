"""The ends of ranks become the end of their worker, and the agent decides when to stop the other ranks."""

from __future__ import annotations

import signal

import pytest

from trainmaster_operator.agent.errors import NO_TORCH
from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.ranks import FAILURE_GRACE, PROVOKED_SECONDS, RAISED_GRACE, SAVING_POLL_SECONDS
from trainmaster_operator.wire.joining import Stop
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine

from .simulated import Agent

TERMINATED = Ending(128 + signal.SIGTERM, signal.SIGTERM)
BROKEN = "RuntimeError: Connection closed by peer"
SUMMARY = "  exitcode: -9) local_rank: 1 (pid: 12)"


def torchrun() -> Agent:
    """Returns an agent with two ranks that torchrun started, with pids 11 and 12."""
    agent = Agent(NPROC_PER_NODE="2")
    agent.wraps_ranks = True
    return agent.run().give(events.RankStarted(0, 11), events.RankStarted(1, 12))


def report(agent: Agent) -> Report:
    return agent.all(actions.PublishReport)[-1].report


def signalled(agent: Agent) -> list[tuple[tuple[int, ...], int]]:
    return [(action.pids, action.launcher) for action in agent.all(actions.Terminate)]


def test_a_rank_that_fails_is_reported_and_the_others_are_ended_at_once() -> None:
    agent = torchrun().give(events.ProcessEnded(12, Ending(1)))
    assert (report(agent).state, report(agent).rank, report(agent).culprit) == ("Failed", 2 + 1, True)
    assert signalled(agent) == [((11,), agent.pid)], "torchrun is killed: it would wait for its ranks"
    assert agent.all(actions.Sweep) == []
    assert len(agent.wait(FAILURE_GRACE).all(actions.Sweep)) == 1


def test_a_rank_that_raised_an_exception_is_reported_at_once_and_exits_by_itself() -> None:
    agent = torchrun().give(events.RankRaised(1, 12, "ValueError: bad"))
    assert (report(agent).reason, report(agent).rank, report(agent).exit_code) == ("Error", 3, 1)
    assert signalled(agent) == [((11,), agent.pid)], "torchrun would end it"
    agent.give(events.ProcessEnded(11, TERMINATED)).wait(RAISED_GRACE - 1)
    assert agent.all(actions.Sweep) == []
    agent.give(events.ProcessEnded(agent.pid, Ending(137, 9)), events.ProcessEnded(12, Ending(134, signal.SIGABRT)))
    assert len(agent.all(actions.Sweep)) == 1
    assert (report(agent).reason, report(agent).exit_code) == ("Error", 1), "how it exits doesn't matter any more"


def test_a_rank_that_raised_an_exception_is_killed_if_its_exit_hangs() -> None:
    agent = torchrun().give(events.RankRaised(1, 12, "ValueError: bad"), events.ProcessEnded(11, TERMINATED))
    assert agent.wait(RAISED_GRACE - 0.1).all(actions.Sweep) == []
    assert len(agent.wait(0.2).all(actions.Sweep)) == 1


@pytest.mark.parametrize("error", [BROKEN, "ValueError: bad"])
def test_an_exception_that_is_no_cause_is_left_to_the_ranks_end(error: str) -> None:
    agent = torchrun() if error == BROKEN else torchrun().run(1, state="Hold", graceSeconds=30.0)
    agent.give(events.RankRaised(1, 12, error), events.RankRaised(0, 99, "KeyError: 1"))
    assert agent.state.ended is None
    assert agent.state.run is not None and not agent.state.run.raised


def test_a_failed_rank_s_report_names_the_ranks_that_had_finished() -> None:
    agent = torchrun()
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(11, Ending(0)), events.ProcessEnded(12, Ending(1)))
    assert (report(agent).rank, report(agent).finished, report(agent).culprit) == (3, (2,), False)


@pytest.mark.parametrize("way", ["alone", "met", "one unwatched"])
def test_ranks_that_finish_without_a_group_are_reported(way: str) -> None:
    agent = torchrun().give(events.RanksUp(1), events.GroupWatched(11))
    if way != "one unwatched":
        agent.give(events.GroupWatched(12))
    line = ProgressLine(1, 1, {2: RankProgress(step=5)}, agent.wall)
    agent.give(events.Progressed(line))
    assert not report(agent).alone
    agent.wait(events.MEET_SECONDS).give(events.Progressed(line))
    assert report(agent).alone is (way != "one unwatched")
    if way == "met":
        agent.give(events.GroupFormed(), events.Progressed(line))
        assert not report(agent).alone
    for pid in (11, 12, agent.pid):
        agent.give(events.ProcessEnded(pid, Ending(0)))
    agent.give(events.RunEmptied())
    assert (report(agent).state, report(agent).alone) == ("Finished", way == "alone")


def test_after_a_mere_broken_connection_the_others_may_still_show_the_cause() -> None:
    agent = torchrun()
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(11, Ending(1)))
    assert not report(agent).culprit
    assert signalled(agent) == []
    agent.evidence = "ValueError: bad"
    agent.wait(FAILURE_GRACE / 2).give(events.ProcessEnded(12, Ending(1)))
    assert (report(agent).rank, report(agent).culprit, report(agent).error) == (3, True, "ValueError: bad")


def test_sigterm_comes_then_and_sigkill_after_the_grace() -> None:
    agent = torchrun()
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(11, Ending(1))).wait(FAILURE_GRACE)
    assert signalled(agent) == [((12,), agent.pid)]
    assert agent.all(actions.Sweep) == []
    assert len(agent.wait(FAILURE_GRACE).all(actions.Sweep)) == 1


def test_a_weaker_cause_does_not_replace_a_stronger_one() -> None:
    agent = torchrun().give(events.ProcessEnded(12, Ending(139, signal.SIGSEGV)))
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(11, Ending(1)))
    assert (report(agent).reason, report(agent).rank) == ("Signal", 3)


@pytest.mark.parametrize(("raised", "rank"), [(True, 3), (False, 2)])
def test_a_rank_that_was_ended_is_the_cause_only_if_it_had_raised_of_its_own(raised: bool, rank: int) -> None:
    """The rank at fault can end later than a rank that lost the connection to it."""
    agent = torchrun()
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(11, Ending(1))).wait(FAILURE_GRACE)
    agent.evidence, agent.raised = "ValueError: bad", raised
    agent.give(events.ProcessEnded(12, TERMINATED))
    assert report(agent).rank == rank


def test_how_ranks_leave_a_planned_stop_is_no_failure() -> None:
    agent = torchrun().run(1, state="Hold", graceSeconds=30.0)
    assert signalled(agent) == [((11, 12), 0)], "torchrun lives and ends with its ranks"
    agent.raised = True
    agent.give(events.ProcessEnded(11, Ending(1)), events.ProcessEnded(12, Ending(0)))
    assert agent.all(actions.ExamineRank) == []
    agent.give(events.ProcessEnded(agent.pid, Ending(1)), events.RunEmptied())
    assert (report(agent).state, report(agent).exit_code) == ("Stopped", 1)


@pytest.mark.parametrize(("unseen", "examined"), [(frozenset({12}), True), (frozenset(), False)])
def test_a_rank_that_torchrun_ended_is_no_cause(unseen: frozenset[int], examined: bool) -> None:
    """On a loaded machine torchrun may have reaped the failed rank before the agent saw it."""
    agent = torchrun().give(events.ProcessEnded(11, TERMINATED, unseen))
    assert [action.was_ended for action in agent.all(actions.ExamineRank)] == [examined]


def test_torchruns_last_lines_name_a_rank_whose_end_nobody_saw() -> None:
    agent = torchrun().give(events.ProcessEnded(11, TERMINATED, frozenset({12})))
    agent.evidence = SUMMARY
    agent.give(events.ProcessEnded(agent.pid, Ending(1)))
    assert (report(agent).rank, report(agent).signal, report(agent).exit_code) == (3, 9, 137)


@pytest.mark.parametrize(("raised", "rank"), [(True, 3), (False, None)])
def test_a_rank_whose_status_nobody_kept_is_the_cause_where_it_had_raised(raised: bool, rank: int | None) -> None:
    """The launcher has reaped it, and the kernel is older than Linux 6.15."""
    agent = torchrun()
    agent.raised = raised
    agent.give(events.ProcessEnded(12, None), events.ProcessEnded(11, TERMINATED))
    assert (report(agent).state, report(agent).rank) == ("Failed" if raised else "Starting", rank)


@pytest.mark.parametrize(
    ("ending", "summary", "named"),
    [
        pytest.param(None, SUMMARY, True, id="the summary names a rank that nobody saw end"),
        pytest.param(None, "  exitcode: -15) local_rank: 1 (pid: 12)", False, id="SIGTERM was ours"),
        pytest.param(None, "  exitcode: 1) local_rank: 1 (pid: 12)", False, id="it hasn't raised of its own"),
        pytest.param(None, "torchrun has lost its way", False, id="the summary names nobody"),
        pytest.param(Ending(1), SUMMARY, False, id="its end was seen"),
    ],
)
def test_torchruns_last_lines_replace_a_report_that_names_nobody_for_certain(
    ending: Ending | None, summary: str, named: bool
) -> None:
    agent = torchrun()
    agent.evidence = BROKEN
    agent.give(events.ProcessEnded(12, ending)).give(events.ProcessEnded(11, Ending(1))).wait(FAILURE_GRACE)
    killed = any(launcher for _, launcher in signalled(agent))
    assert killed is (ending is not None), "torchrun lives where its last lines are needed"
    agent.evidence = summary
    agent.give(events.ProcessEnded(agent.pid, Ending(1)))
    assert ((report(agent).rank, report(agent).signal) == (3, 9)) is report(agent).culprit is named


def test_a_launcher_that_never_had_ranks_could_not_start_them() -> None:
    agent = Agent(NPROC_PER_NODE="2")
    agent.wraps_ranks = True
    agent.evidence = "torchrun: error: unrecognized arguments"
    agent.run().give(events.ProcessEnded(agent.pid, Ending(1)))
    assert (report(agent).reason, report(agent).exit_code, report(agent).rank) == ("LaunchError", 1, None)
    assert report(agent).error == agent.evidence


@pytest.mark.parametrize(
    ("evidence", "is_torch"),
    [
        (
            "/usr/bin/python: Error while finding module specification for 'torch.distributed.run' "
            "(ModuleNotFoundError: No module named 'torch')",
            True,
        ),
        ("/usr/bin/python3: No module named torch", True),
        ("ModuleNotFoundError: No module named 'torch.distributed'", False),
        ("ModuleNotFoundError: No module named 'torchvision'", False),
    ],
)
def test_an_image_without_torch_is_said_to_have_none(evidence: str, is_torch: bool) -> None:
    agent = Agent(NPROC_PER_NODE="2")
    agent.wraps_ranks = True
    agent.evidence = evidence
    agent.run().give(events.ProcessEnded(agent.pid, Ending(1)))
    assert report(agent).error == (NO_TORCH if is_torch else evidence)


def test_ranks_that_leave_with_0_have_finished_when_nothing_is_left() -> None:
    agent = torchrun().give(*(events.ProcessEnded(pid, Ending(0)) for pid in (11, 12)))
    agent.give(events.ProcessEnded(agent.pid, Ending(0)))
    assert report(agent).state == "Starting"
    assert len(agent.all(actions.Sweep)) == 1
    assert report(agent.give(events.RunEmptied())).state == "Finished"


def test_orphans_are_none_of_ours() -> None:
    agent = torchrun().give(events.ProcessEnded(99, Ending(1)))
    assert agent.all(actions.ExamineRank) == []
    assert agent.state.ended is None


def test_an_end_that_is_seen_twice_counts_once() -> None:
    agent = torchrun().give(events.ProcessEnded(12, Ending(1)), events.ProcessEnded(12, Ending(1)))
    assert len(agent.all(actions.ExamineRank)) == 1


def test_a_rank_that_starts_after_sigterm_is_sent_it_too() -> None:
    agent = Agent(NPROC_PER_NODE="2")
    agent.wraps_ranks = True
    agent.run().give(Stop(1, 0.4, 0.0, None), events.RankStarted(0, 11))
    assert signalled(agent) == [((agent.pid,), agent.pid), ((11,), 0)]


@pytest.mark.parametrize(
    ("stops", "killed_after"),
    [
        pytest.param([(0.4, 0.0)], 0.4, id="at once"),
        pytest.param([(0.4, 0.4)], 0.8, id="SIGTERM after a moment"),
        pytest.param([(30.0, 0.0), (0.4, 0.0)], 0.4, id="the earliest SIGKILL holds"),
        pytest.param([(0.4, 0.0), (30.0, 0.0)], 0.4, id="in whatever order"),
        pytest.param([(0.4, 0.4), (0.2, 0.0)], 0.2, id="at once replaces after a moment"),
        pytest.param([(0.4, 0.4), (0.4, 60.0)], 0.8, id="the first moment holds"),
    ],
)
def test_ranks_get_sigkill(stops: list[tuple[float, float]], killed_after: float) -> None:
    agent = torchrun().give(*(Stop(1, grace, after, None) for grace, after in stops))
    agent.wait(killed_after - 0.001)
    assert agent.all(actions.Sweep) == []
    assert len(agent.wait(0.002).all(actions.Sweep)) == 1


def test_stops_of_other_attempts_mean_nothing() -> None:
    assert signalled(torchrun().give(Stop(2, 0.4, 0.0, None))) == []


# Hangs


def test_a_hang_fails_the_attempt() -> None:
    agent = torchrun().give(events.AttemptFailed(1, "Hung", "rank 3 made no progress", 3))
    assert (report(agent).reason, report(agent).exit_code, report(agent).rank) == ("Hung", 68, 3)
    assert len(signalled(agent)) == 1


def test_a_rank_that_was_provoked_gets_time_to_print_its_stacks() -> None:
    agent = torchrun().give(events.RankProvoked(1), events.ProcessEnded(12, Ending(134, signal.SIGABRT)))
    assert agent.all(actions.ExamineRank) == [], "how it then ends isn't classified"
    agent.wait(PROVOKED_SECONDS - 0.01)
    assert agent.state.ended is None
    assert report(agent.wait(0.01)).reason == "Hung"


def test_the_cause_of_a_hang_is_reported_before_the_next_attempt_when_all_have_gone_sooner() -> None:
    agent = torchrun().give(events.RankProvoked(1))
    agent.give(*(events.ProcessEnded(pid, Ending(134, signal.SIGABRT)) for pid in (11, 12, agent.pid)))
    agent.give(events.RunEmptied())
    assert (report(agent).state, report(agent).reason) == ("Failed", "Hung")
    assert agent.state.run is None


def saving(seconds: float, **environ: str) -> Agent:
    """Returns an agent with torchrun's pids 11 to 13. The first rank has failed, and the second writes its state."""
    agent = Agent(NPROC_PER_NODE="3", **environ)
    agent.wraps_ranks = True
    agent.run().give(*(events.RankStarted(rank, 11 + rank) for rank in range(3)))
    agent.saving = {1: seconds}
    return agent.give(events.ProcessEnded(11, Ending(1)))


def killed(agent: Agent) -> set[int]:
    return {pid for action in agent.all(actions.KillProcesses) for pid in action.pids}


def test_a_rank_that_writes_its_state_is_given_the_time_that_it_asks_for_and_no_other() -> None:
    agent = saving(2.0).wait(FAILURE_GRACE - 0.1)
    assert (killed(agent), agent.all(actions.Sweep)) == (set(), []), "the others have their own grace"
    agent.wait(0.2)
    assert (killed(agent), agent.all(actions.Sweep)) == ({13}, [])
    assert agent.wait(1.4).all(actions.Sweep) == []
    assert len(agent.wait(0.2).all(actions.Sweep)) == 1
    assert killed(agent) == {13}


def test_sigkill_comes_as_soon_as_the_state_is_written() -> None:
    agent = saving(10.0).wait(0.1)
    agent.saving = {1: 0.0}
    agent.wait(SAVING_POLL_SECONDS)
    assert (killed(agent), agent.all(actions.Sweep)) == ({12}, [])
    agent.saving = {1: 0.0, 2: 0.0}
    assert len(agent.wait(SAVING_POLL_SECONDS).all(actions.Sweep)) == 1


def test_in_a_planned_stop_ranks_get_all_of_their_grace_whatever_they_have_written() -> None:
    agent = torchrun()
    agent.saving = {0: 0.0, 1: 0.0}
    agent.run(1, state="Hold", graceSeconds=5.0).wait(4.9)
    assert (killed(agent), agent.all(actions.Sweep)) == (set(), [])
    assert len(agent.wait(0.2).all(actions.Sweep)) == 1


def test_a_rank_that_leaves_when_its_state_is_written_is_not_waited_for() -> None:
    agent = saving(10.0).wait(FAILURE_GRACE)
    agent.give(events.ProcessEnded(13, Ending(137, 9)), events.ProcessEnded(agent.pid, Ending(137, 9)))
    assert agent.all(actions.Sweep) == []
    agent.give(events.ProcessEnded(12, Ending(1)))
    assert len(agent.all(actions.Sweep)) == 1


def test_no_rank_gets_more_than_the_jobs_own_grace() -> None:
    agent = saving(1e9, TRAINMASTER_GRACE_SECONDS="5")
    assert agent.wait(4.9).all(actions.Sweep) == []
    assert len(agent.wait(0.5).all(actions.Sweep)) == 1


def test_the_report_does_not_wait_for_a_rank_that_writes_its_state() -> None:
    agent = saving(10.0).wait(FAILURE_GRACE)
    assert (report(agent).state, report(agent).rank) == ("Failed", 3)
    assert agent.names.index("PublishReport") < agent.names.index("FindSavingRanks")
