"""Ranks are forked from the warm process: their ends become the worker's, and the planner decides when to start it."""

from __future__ import annotations

import pytest

from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.plan import MAX_WARM_FAILURES
from trainmaster_operator.wire.joining import Modules

from .simulated import Agent, assignment, idle

WARM = {"TRAINMASTER_WARM_START": "true", "TRAINMASTER_LAUNCHER": "torchrun", "NPROC_PER_NODE": "2"}
FINE, KILLED, TERMINATED = Ending(0), Ending(137, 9), Ending(143, 15)


def warm(**environ: str) -> Agent:
    """Returns an agent whose attempt has two forked ranks, 101 and 102."""
    agent = Agent(**WARM, **environ)
    agent.forks = True
    return agent.run().give(events.RankStarted(0, 101), events.RankStarted(1, 102))


def ended(pid: int, ending: Ending) -> events.ProcessEnded:
    return events.ProcessEnded(pid, ending)


def test_the_warm_process_is_started_before_the_ranks_and_once() -> None:
    agent = warm()
    assert agent.names.count("WarmUp") == 1
    assert agent.names.index("WarmUp") < agent.names.index("Launch")


@pytest.mark.parametrize("missing", ["TRAINMASTER_WARM_START", "TRAINMASTER_LAUNCHER"])
def test_there_is_none_where_it_is_not_wanted(missing: str) -> None:
    agent = Agent(**{**WARM, missing: "exec" if missing == "TRAINMASTER_LAUNCHER" else "false"}).run()
    assert "WarmUp" not in agent.names
    # Programs that the launcher doesn't bring together wait until all workers are there.
    assert ("Launch" in agent.names) == (missing == "TRAINMASTER_WARM_START")


def test_there_is_none_for_a_job_that_is_held() -> None:
    assert "WarmUp" not in Agent(**WARM).give(events.AssignmentReceived(assignment(1, "Hold"))).names


def test_it_waits_for_the_environment_that_the_setup_line_leaves() -> None:
    agent = Agent(**WARM, TRAINMASTER_SETUP="source /opt/env.sh").run()
    assert "WarmUp" not in agent.names
    agent.give(events.SetupEnded({"FLAVOUR": "npu"}))
    assert [action.environ for action in agent.all(actions.WarmUp)] == [{"FLAVOUR": "npu"}]


def test_the_worker_has_finished_when_all_ranks_have() -> None:
    agent = warm().give(ended(102, FINE))
    assert not idle(agent.state) and "Sweep" not in agent.names
    agent.give(ended(101, FINE))
    assert agent.names.count("Sweep") == 1
    assert agent.give(events.RunEmptied()).state.ended.state == "Finished"  # type: ignore[union-attr]


def test_when_a_rank_fails_the_agent_stops_the_others() -> None:
    agent = warm().give(ended(102, KILLED))
    report = agent.state.ended
    assert report is not None and (report.reason, report.rank, report.signal) == ("Signal", 3, 9)
    assert agent.all(actions.Terminate) == [actions.Terminate((101,), 0, 0.0)]
    agent.give(ended(101, TERMINATED))
    assert agent.names[-1] == "Sweep", "there is no launcher to wait for"
    assert agent.give(events.RunEmptied()).state.ended == report


def test_without_its_store_an_attempt_fails_as_its_process_did() -> None:
    agent = warm().give(events.StoreEnded(1, Ending(1), "DistNetworkError: EADDRINUSE", 0))
    report = agent.state.ended
    assert report is not None and (report.state, report.reason, report.rank) == ("Failed", "Error", None)
    assert report.error == "the process that serves torch's store has ended\nDistNetworkError: EADDRINUSE"
    assert agent.all(actions.Terminate) == [actions.Terminate((101, 102), 0, 0.0)]


def test_a_store_that_is_swept_with_the_ranks_fails_nothing() -> None:
    agent = warm().give(ended(101, FINE), ended(102, FINE), events.StoreEnded(1, KILLED, "", 0), events.RunEmptied())
    assert agent.state.ended is not None and agent.state.ended.state == "Finished"


def test_the_store_of_an_attempt_before_is_of_no_account() -> None:
    agent = warm().give(ended(101, FINE), ended(102, FINE), events.RunEmptied())
    agent.give(events.AssignmentReceived(assignment(2)), events.StoreEnded(1, KILLED, "", 0))
    assert agent.state.started == 2 and agent.state.ended is None


def test_sigterm_from_somebody_else_is_a_failure() -> None:
    """torchrun ends ranks by SIGTERM when another has failed; without torchrun, only the agent does."""
    report = warm().give(ended(101, TERMINATED)).state.ended
    assert report is not None and (report.reason, report.signal, report.rank) == ("Signal", 15, 2)


def test_a_rank_that_ignores_sigterm_is_killed_when_its_grace_is_over() -> None:
    agent = warm().give(ended(102, KILLED)).wait(0.39)
    assert "Sweep" not in agent.names
    assert agent.wait(0.02).names.count("Sweep") == 1


def test_an_attempt_that_is_stopped_before_its_ranks_are_forked_leaves_nothing() -> None:
    agent = Agent(**WARM)
    agent.forks = True
    agent.run().give(events.AssignmentReceived(assignment(1, "Hold")))
    assert agent.all(actions.Terminate) == [actions.Terminate((), 0, 0.0)], "nobody, and above all not process group 0"
    agent.give(events.NothingForked())
    assert agent.names[-1] == "Sweep"
    assert agent.give(events.RunEmptied()).state.ended.state == "Stopped"  # type: ignore[union-attr]


def test_where_no_rank_can_be_started_cold_either_the_attempt_has_failed() -> None:
    agent = Agent(**WARM)
    agent.forks = True
    agent.run().give(events.LaunchFailed("this image has no torch"))
    assert agent.names[-1] == "Sweep"
    report = agent.give(events.RunEmptied()).state.ended
    assert report is not None and (report.reason, report.error) == ("LaunchError", "this image has no torch")
    assert idle(agent.state)


def test_a_process_that_fails_is_started_again_but_not_for_ever() -> None:
    agent = warm().give(events.RanksUp(1))
    for _ in range(MAX_WARM_FAILURES + 3):
        agent.give(events.WarmProcessEnded(events.FAILED))
    assert agent.names.count("WarmUp") == MAX_WARM_FAILURES


def test_failures_count_in_a_row() -> None:
    agent = warm().give(events.RanksUp(1))
    for _ in range(2 * MAX_WARM_FAILURES):
        agent.give(events.WarmProcessEnded(events.FAILED), events.RanksForked())
    assert agent.names.count("WarmUp") == 2 * MAX_WARM_FAILURES + 1


def test_a_process_that_was_killed_says_nothing_of_the_next_one() -> None:
    """This holds however often attempts are stopped while it starts, which is likely on a slow processor."""
    agent = Agent(**WARM)
    agent.forks = True
    for attempt in range(1, 3 * MAX_WARM_FAILURES):
        agent.run(attempt).give(events.AssignmentReceived(assignment(attempt, "Hold")), events.WarmProcessKilled())
        agent.give(events.WarmProcessEnded(events.KILLED), events.NothingForked(), events.RunEmptied())
    assert agent.names.count("WarmUp") == 3 * MAX_WARM_FAILURES - 1


def test_what_a_process_lacks_the_next_attempt_may_find() -> None:
    agent = warm().give(events.RanksUp(1), events.WarmProcessEnded(events.LACKING))
    assert agent.names.count("WarmUp") == 1, "its ranks run, and nothing has changed"
    agent.run(2)
    assert agent.names.count("WarmUp") == 1, "they may hold what it lacked"
    agent.give(ended(101, TERMINATED), ended(102, TERMINATED), events.RunEmptied())
    assert [name for name in agent.names if name in ("WarmUp", "Launch")] == ["WarmUp", "Launch"] * 2


def test_an_attempt_waits_for_the_end_of_a_process_that_was_killed() -> None:
    """It forks nothing any more, so the next attempt needs another warm process."""
    agent = Agent(**WARM)
    agent.forks = True
    agent.run().give(events.AssignmentReceived(assignment(1, "Hold")), events.WarmProcessKilled())
    agent.give(events.NothingForked(), events.RunEmptied()).run(2)
    assert agent.names.count("Launch") == 1
    agent.give(events.WarmProcessEnded(events.KILLED))
    assert agent.names[-3:-1] == ["WarmUp", "Launch"]


def test_it_is_not_started_again_while_ranks_start_cold() -> None:
    agent = Agent(**WARM)
    agent.forks = True
    agent.run().give(events.WarmProcessEnded(events.FAILED), events.RankStarted(0, 101), events.RankStarted(1, 102))
    assert agent.names.count("WarmUp") == 1
    assert agent.give(events.RanksUp(1)).names.count("WarmUp") == 2


def test_one_that_would_fare_the_same_is_not_started_again() -> None:
    assert warm().give(events.RanksUp(1), events.WarmProcessEnded(events.HOPELESS)).names.count("WarmUp") == 1
    assert (
        warm()
        .give(events.RanksUp(1), events.TerminationRequested(), events.WarmProcessEnded(events.KILLED))
        .names.count("WarmUp")
        == 1
    )


LEARNED, OTHERS = Modules(("torch._dynamo",)), Modules(("numpy",))


def test_what_was_learned_goes_to_the_leader_and_to_each_that_is_joined_later() -> None:
    agent = warm().give(events.ModulesLearned(LEARNED))
    assert agent.all(actions.Publish)[-1] == actions.Publish(LEARNED)
    agent.give(events.LeaderJoined())
    assert LEARNED in agent.all(actions.Introduce)[-1].messages


def test_what_another_worker_has_learned_is_imported_where_nothing_is_known() -> None:
    agent = warm().give(OTHERS)
    assert agent.all(actions.Preload) == [actions.Preload(OTHERS)]
    agent.give(LEARNED)
    assert len(agent.all(actions.Preload)) == 1, "the first list holds"
    assert warm().give(events.ModulesLearned(LEARNED), OTHERS).all(actions.Preload) == []
