"""The planner accepts assignments, saves them, runs setup before the ranks, and sends reports."""

from __future__ import annotations

import pytest

from tests.signer import JOB_UID
from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.plan import RESOLVED_SECONDS
from trainmaster_operator.agent.planner.state import LeaderContact, MasterContact, SavedReport
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Collect, Environment, Hung, Joined, Mismatch, Reported, Stop
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report, WorkerState
from trainmaster_operator.wire.stream import EvidenceLine, Ping, ProgressLine, Recovery

from .simulated import UID, WATCHED, WORKER, Agent, assignment, idle

FAR = LeaderContact(0, True, MasterContact(False, False, "job-0 (no address) port 8472: unknown"))
RESOLVED = FAR._replace(master=MasterContact(False, True, "job-0 (10.0.0.1) port 8472: no answer within 1 s"))


def begun(agent: Agent) -> list[int]:
    return [action.report.attempt for action in agent.all(actions.Begin)]


def states(agent: Agent) -> list[tuple[int, str]]:
    """Returns the attempt and the state of each published report."""
    return [(action.report.attempt, action.report.state) for action in agent.all(actions.PublishReport)]


def test_an_attempt_is_saved_before_it_is_published_and_published_before_it_runs() -> None:
    assert Agent().run().names == [
        "ApplyAssignment",
        "Begin",
        "PublishReport",
        "Launch",
        "DescribeEnvironment",
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([assignment(1), assignment(1)], [1], id="the same again"),
        pytest.param([assignment(2), assignment(1)], [2], id="an older one"),
        pytest.param([assignment(1, "Hold"), assignment(1)], [], id="Hold wins over Run"),
        pytest.param([assignment(1, "Hold"), assignment(2)], [2], id="a higher one ends a Hold"),
        pytest.param([assignment(2, uids=["uid-0", "another"])], [], id="another pod of this worker is meant"),
        pytest.param([assignment(0, "Hold"), assignment(1)], [1], id="the first order was not known"),
    ],
)
def test_the_highest_assignment_counts(given: list[Assignment], expected: list[int]) -> None:
    agent = Agent()
    for each in given:
        agent.give(events.AssignmentReceived(each))
    assert begun(agent) == expected


def test_who_is_not_assigned_says_that_it_waits_once() -> None:
    agent = Agent().run(2, uids=["uid-0", "another"]).run(3, state="Hold").wait(60)
    assert states(agent) == [(2, "Waiting"), (3, "Waiting")]
    assert agent.saved is None, "what was started here last is what counts after a restart"


def test_an_attempt_that_ran_here_is_never_begun_again() -> None:
    agent = Agent().run().end(Ending(0))
    again = Agent(agent.saved).run()
    assert begun(again) == []
    assert states(again) == [(1, "Finished")]


@pytest.mark.parametrize("state", ["Starting", "Running"])
def test_an_attempt_without_an_end_is_reported_as_lost(state: WorkerState) -> None:
    agent = Agent(SavedReport(Report(1, WORKER, "old-uid", state), False)).run()
    assert agent.names[:3] == ["KillLeftovers", "SaveReport", "PublishReport"]
    report = agent.all(actions.PublishReport)[0].report
    assert (report.state, report.reason, report.exit_code, report.uid) == ("Failed", "AgentLost", 69, UID)
    assert begun(agent) == []
    assert agent.saved == SavedReport(report, False)


def test_a_newer_attempt_stops_the_one_that_runs_and_starts_when_it_has_gone() -> None:
    agent = Agent().run().run(2)
    assert [action.pids for action in agent.all(actions.Terminate)] == [(agent.pid,)]
    assert begun(agent) == [1]
    agent.end(Ending(143, 15))
    assert begun(agent) == [1, 2]
    assert states(agent) == [(1, "Starting"), (1, "Stopped"), (2, "Starting")]


def test_hold_stops_the_ranks_with_its_grace() -> None:
    agent = Agent().run().run(1, state="Hold", graceSeconds=30.0).wait(29)
    assert agent.all(actions.Sweep) == []
    assert len(agent.wait(1).all(actions.Sweep)) == 1


def test_an_attempt_that_cannot_be_saved_fails_and_never_runs() -> None:
    agent = Agent()
    agent.saving_fails = True
    agent.run()
    assert agent.all(actions.Launch) == []
    report = agent.all(actions.PublishReport)[-1].report
    assert (report.reason, report.exit_code, report.error) == (
        "LaunchError",
        65,
        "cannot write /state/saved-report.json: No space left on device",
    )
    assert agent.wait(60).exit_code == 65


def test_a_command_that_cannot_be_started_fails_the_attempt() -> None:
    agent = Agent()
    agent.launching_fails = True
    report = agent.run().all(actions.PublishReport)[-1].report
    assert (report.state, report.reason, report.exit_code) == ("Failed", "LaunchError", 65)
    assert idle(agent.state)


# Before the ranks


def test_ranks_start_when_worker_0_is_within_reach() -> None:
    agent = Agent(contact=FAR).run().wait(5)
    assert agent.all(actions.Launch) == []
    agent.give(events.LeaderContactChanged(WATCHED))
    assert len(agent.all(actions.Launch)) == 1


@pytest.mark.parametrize("known_before", [True, False])
def test_they_start_a_moment_after_its_name_is_known_though_it_is_silent(known_before: bool) -> None:
    agent = Agent(contact=RESOLVED if known_before else FAR).run().give(events.LeaderContactChanged(RESOLVED))
    agent.wait(RESOLVED_SECONDS - 0.01)
    assert agent.all(actions.Launch) == []
    assert len(agent.wait(0.01).all(actions.Launch)) == 1


@pytest.mark.parametrize(("contact", "seconds"), [(FAR, 29), (RESOLVED, 29), (WATCHED, 600)])
def test_programs_without_a_rendezvous_start_when_all_workers_have_joined(
    contact: LeaderContact, seconds: float
) -> None:
    variables = {"TRAINMASTER_LAUNCHER": "exec", "TRAINMASTER_FIRST_STEP_TIMEOUT": "30"}
    agent = Agent(contact=contact, **variables).run().wait(seconds)
    assert agent.all(actions.Launch) == []
    assert states(agent)[-1] == (1, "Starting"), "the operator limits the wait"
    agent.give(events.LeaderContactChanged(WATCHED._replace(gathered=1)))
    assert len(agent.all(actions.Launch)) == 1


def test_a_worker_0_that_nobody_knows_fails_the_attempt_in_the_end() -> None:
    agent = Agent(contact=FAR, TRAINMASTER_FIRST_STEP_TIMEOUT="30").run().wait(30)
    report = agent.all(actions.PublishReport)[-1].report
    assert (report.reason, report.exit_code, report.culprit) == ("MasterUnreachable", 66, False)
    assert report.error == f"worker 0 is not within reach after 30 s: {FAR.master.problem}"
    assert agent.all(actions.Launch) == []


def test_the_setup_line_runs_once_in_an_agents_life() -> None:
    agent = Agent(TRAINMASTER_SETUP="source set_env.sh").run().wait(60)
    assert agent.all(actions.Launch) == []
    agent.give(events.SetupEnded({"A": "1"}))
    assert [action.environ for action in agent.all(actions.Launch)] == [{"A": "1"}]
    agent.end(Ending(0)).run(2)
    assert len(agent.all(actions.RunSetup)) == 1
    assert len(agent.all(actions.Launch)) == 2


@pytest.mark.parametrize(("ending", "code"), [((0, None), 65), ((3, None), 3), ((137, 9), 137)])
def test_a_setup_line_that_fails_is_a_launch_error(ending: tuple[int, int | None], code: int) -> None:
    agent = Agent(TRAINMASTER_SETUP="false").run().give(events.SetupEnded(None, *ending, "no such file"))
    report = agent.all(actions.PublishReport)[-1].report
    assert (report.reason, report.exit_code, report.signal, report.error) == (
        "LaunchError",
        code,
        ending[1],
        "no such file",
    )
    agent.end(Ending(0)).run(2)
    assert len(agent.all(actions.RunSetup)) == 2, "the next attempt tries it again"


@pytest.mark.parametrize(
    "event",
    [
        events.AssignmentReceived(assignment(1, "Hold")),
        events.TerminationRequested(),
        Stop(1, 0.4, 0.4, None),
    ],
    ids=["held", "SIGTERM", "a rank failed elsewhere"],
)
def test_who_is_stopped_before_its_ranks_is_stopped_at_once(event: events.Event) -> None:
    agent = Agent(contact=FAR, TRAINMASTER_SETUP="sleep 60").run().give(event)
    assert len(agent.all(actions.CancelSetup)) == 1
    assert states(agent)[-1] == (1, "Stopped")
    agent.give(events.LeaderContactChanged(WATCHED), events.SetupEnded({}))
    assert agent.all(actions.Launch) == []


# The leader


def test_who_joins_a_leader_says_everything_again() -> None:
    agent = Agent().run().end(Ending(1)).run(2)
    environment, line = Environment(2, {"torch": "2.13"}), ProgressLine(2, WORKER, {1: RankProgress(step=7)})
    agent.give(environment, events.Progressed(line), events.LeaderJoined())
    failed, starting = agent.all(actions.PublishReport)[-2:]
    published = agent.all(actions.Publish)[-1].message
    assert published == line._replace(recovery=Recovery(0.0, 0.0, 0.0, 0.0))
    assert agent.all(actions.Introduce)[-1].messages == (
        Joined(JOB_UID, WORKER, UID, 2),
        environment,
        Reported(failed.report),
        Reported(starting.report),
        published,
    )
    assert (failed.report.state, starting.report.state) == ("Failed", "Starting")


def test_progress_is_published_before_the_report_of_the_end() -> None:
    agent = Agent().run()
    del agent.performed[:]
    agent.give(events.ProcessEnded(agent.pid, Ending(1)))
    assert agent.names == ["ExamineRank", "FlushProgress", "SaveReport", "PublishReport", "Terminate", "Sweep"]


def test_a_report_of_ranks_that_are_up_is_saved_too() -> None:
    agent = Agent().run().give(events.RanksUp(1))
    assert states(agent)[-1] == (1, "Running")
    assert agent.saved is not None
    assert agent.saved.report.state == "Running"


def test_environments_of_older_attempts_are_not_published() -> None:
    agent = Agent().run().end(Ending(1)).run(2).give(Environment(1, {"torch": "1"}))
    assert agent.all(actions.Publish) == []


def test_a_report_says_what_the_ranks_run_on() -> None:
    """A rank's own line about its environment replaces the agent's. Both apply to their own attempt only."""
    found = Environment(1, {"gpus": "2 x H200", "driver": "580.65", "torch cuda": "13.0", "nvidia-nccl-cu13": "2.28.9"})
    agent = Agent().run().give(found, events.RanksUp(1))
    assert agent.all(actions.PublishReport)[-1].report.environment == "2 x H200, driver 580.65, CUDA 13.0, NCCL 2.28.9"
    agent.give(events.EnvironmentPrinted(1, "2 x H200, backend nccl"), events.EnvironmentPrinted(2, "another's"))
    agent.end(Ending(1))
    assert agent.all(actions.PublishReport)[-1].report.environment == "2 x H200, backend nccl"
    agent.run(2).give(events.RanksUp(2))
    assert agent.all(actions.PublishReport)[-1].report.environment == ""


def test_a_mismatch_fails_the_attempt_that_it_is_of() -> None:
    agent = Agent().run().give(Mismatch(2, ("torch differs",)))
    assert agent.state.ended is None
    agent.give(Mismatch(1, ("torch differs: 1 on worker 0; 2 on worker 1",)))
    report = agent.all(actions.PublishReport)[-1].report
    assert (report.reason, report.exit_code) == ("PreflightMismatch", 67)
    assert report.error.endswith("torch differs: 1 on worker 0; 2 on worker 1")
    assert len(agent.all(actions.Terminate)) == 1


def test_another_workers_failure_is_shown_on_this_workers_streams() -> None:
    other = Report(1, 0, "uid-0", "Failed")
    agent = Agent().run().give(Stop(1, 0.4, 0.0, other))
    assert [action.report for action in agent.all(actions.KeepReport)] == [other]
    own = other._replace(worker=WORKER)
    assert agent.give(Stop(1, 0.4, 0.0, own)).all(actions.KeepReport) == [actions.KeepReport(other)]


@pytest.mark.parametrize("running", [True, False])
def test_who_is_asked_for_evidence_answers_whether_or_not_its_ranks_can_hang(running: bool) -> None:
    agent = Agent().run()
    if not running:
        agent.end(Ending(0))
    collect, hung = Collect(1, 40_000), Hung(1, 1, "rank 1 made no progress")
    agent.give(collect, hung)
    alive, *answers = [action.message for action in agent.all(actions.SendToLeader)]
    assert alive == Ping()
    assert answers == ([] if running else [EvidenceLine(1, WORKER, {}, agent.wall)]), "only a question is answered"
    assert [action.message for action in agent.all(actions.Diagnose)] == ([collect, hung] if running else [])
