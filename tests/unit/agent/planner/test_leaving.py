"""The agent decides when to report by exiting (docs/protocol.md, "The sure way")."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.events import NEW_LEADER_SECONDS
from trainmaster_operator.agent.planner.plan import FORGOTTEN_SECONDS, PATIENCE_SECONDS, exit_at
from trainmaster_operator.agent.planner.state import NO_ASSIGNMENT, LeaderContact, SavedReport, State
from trainmaster_operator.wire.joining import Ack
from trainmaster_operator.wire.report import Report

from .simulated import REACHED, UID, UNWATCHED, WATCHED, WORKER, Agent, assignment

ATTEMPT = 3
ENDED_AT = 500.0
FINISHED = Report(ATTEMPT, WORKER, UID, "Finished", exit_code=0)
FAILED = Report(ATTEMPT, WORKER, UID, "Failed", exit_code=1, reason="Error")
BYSTANDER = FAILED._replace(culprit=False)
LOST = FAILED._replace(reason="AgentLost")
RUN, HOLD = assignment(ATTEMPT), assignment(ATTEMPT, "Hold")


def ended(report: Report, **changes: Any) -> State:
    """Returns an agent of which nothing runs and whose report is saved, while no operator watches."""
    state = Agent().state._replace(report=report, saved=SavedReport(report, False), started=ATTEMPT, assignment=RUN)
    return state._replace(
        ended_at=ENDED_AT, contact=UNWATCHED, unwatched_at=ENDED_AT - 10, new_leader_until=0.0
    )._replace(**changes)


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        pytest.param(ended(FINISHED), 0.0, id="nobody watches"),
        pytest.param(ended(FAILED), 0.0, id="nobody watches a failure"),
        pytest.param(ended(FINISHED, contact=WATCHED, unwatched_at=None), PATIENCE_SECONDS, id="an operator watches"),
        pytest.param(ended(FAILED, new_leader_until=ENDED_AT + 1.5), 1.5, id="until a new leader is new no more"),
        pytest.param(ended(FAILED, new_leader_until=ENDED_AT + 60), PATIENCE_SECONDS, id="but not for ever"),
        pytest.param(ended(BYSTANDER), PATIENCE_SECONDS, id="a bystander waits for the next attempt"),
        pytest.param(ended(LOST), PATIENCE_SECONDS, id="the kubelet has reported a lost agent's container"),
        pytest.param(ended(BYSTANDER, assignment=HOLD), FORGOTTEN_SECONDS, id="a bystander, and the operator knows"),
        pytest.param(ended(LOST, assignment=HOLD), FORGOTTEN_SECONDS, id="a lost agent, and the operator knows"),
        pytest.param(ended(FAILED, assignment=HOLD), 0.0, id="the culprit's own word counts, held or not"),
        pytest.param(ended(FINISHED, acknowledged=ATTEMPT), FORGOTTEN_SECONDS, id="acknowledged, but nobody is there"),
        pytest.param(
            ended(FINISHED, acknowledged=ATTEMPT, unwatched_at=ENDED_AT + 7),
            7 + FORGOTTEN_SECONDS,
            id="acknowledged, and who did it has gone later",
        ),
        pytest.param(ended(FINISHED, acknowledged=ATTEMPT, unwatched_at=None), None, id="acknowledged and watched"),
        pytest.param(ended(FINISHED, acknowledged=ATTEMPT, assignment=HOLD), None, id="acknowledged and held"),
        pytest.param(ended(FINISHED, acknowledged=ATTEMPT - 1), 0.0, id="only the attempt before was acknowledged"),
        pytest.param(ended(FINISHED, assignment=assignment(ATTEMPT + 1)), None, id="a newer attempt is known"),
        pytest.param(ended(FINISHED, assignment=NO_ASSIGNMENT), None, id="no assignment is known"),
        pytest.param(ended(FINISHED, saved=SavedReport(FINISHED, True)), None, id="it was made by exiting before"),
        pytest.param(ended(FINISHED._replace(state="Stopped")), None, id="who was stopped has nothing to report"),
        pytest.param(ended(FINISHED._replace(state="Running")), None, id="it runs"),
    ],
)
def test_a_report_is_made_by_exiting_after(state: State, seconds: float | None) -> None:
    time = exit_at(state)
    assert (None if time is None else time - ENDED_AT) == seconds


def test_leaving_saves_that_it_does_writes_the_message_and_exits_with_the_code() -> None:
    agent = Agent(contact=UNWATCHED).run()
    agent.wait(NEW_LEADER_SECONDS).end(Ending(3))
    assert agent.names[-3:] == ["SaveReport", "WriteTerminationMessage", "Exit"]
    assert agent.exit_code == 3
    assert agent.termination_message.state == "Failed"
    assert agent.saved is not None
    assert agent.saved.exited
    before = list(agent.performed)
    agent.run(2).wait(60)
    assert agent.performed == before, "on its way out it does nothing more"


def test_nobody_exits_while_ranks_run() -> None:
    agent = Agent(contact=UNWATCHED).run().wait(NEW_LEADER_SECONDS)
    agent.give(events.ProcessEnded(agent.pid, Ending(3))).wait(60)
    assert agent.exit_code is None
    assert agent.give(events.RunEmptied()).exit_code == 3


def test_who_has_reported_by_exiting_stays_afterwards() -> None:
    agent = Agent(contact=UNWATCHED).run().wait(NEW_LEADER_SECONDS).end(Ending(0))
    assert agent.exit_code == 0
    again = Agent(agent.saved, contact=UNWATCHED).run().wait(120)
    assert again.exit_code is None
    assert [action.report.state for action in again.all(actions.PublishReport)] == ["Finished"]


def test_an_acknowledgement_keeps_the_agent_while_an_operator_watches() -> None:
    agent = Agent().run().end(Ending(0)).give(Ack(1)).wait(300)
    assert agent.exit_code is None
    agent.give(events.LeaderContactChanged(UNWATCHED)).wait(FORGOTTEN_SECONDS - 1)
    assert agent.exit_code is None
    agent.give(events.LeaderContactChanged(WATCHED)).give(events.LeaderContactChanged(UNWATCHED))
    agent.wait(FORGOTTEN_SECONDS - 1)
    assert agent.exit_code is None, "an operator that comes back in time begins the wait anew"
    assert agent.wait(1).exit_code == 0


def test_without_an_acknowledgement_it_leaves_when_its_patience_ends() -> None:
    agent = Agent().run().end(Ending(0)).wait(PATIENCE_SECONDS - 0.1)
    assert agent.exit_code is None
    assert agent.wait(0.1).exit_code == 0


def test_a_lost_leader_gives_the_next_one_time_to_be_watched() -> None:
    agent = Agent().run().give(events.LeaderContactChanged(LeaderContact(None, True, REACHED)))
    agent.give(events.LeaderContactChanged(LeaderContact(2, False, REACHED))).end(Ending(1)).wait(
        NEW_LEADER_SECONDS - 0.1
    )
    assert agent.exit_code is None
    assert agent.wait(0.1).exit_code == 1


@pytest.mark.parametrize("code", [0, 1])
def test_the_next_attempt_comes_before_patience_ends(code: int) -> None:
    agent = Agent().run().end(Ending(code)).wait(PATIENCE_SECONDS / 2).run(2).wait(60)
    assert agent.exit_code is None
    assert [action.report.attempt for action in agent.all(actions.Begin)] == [1, 2]


def test_sigterm_ends_it_when_the_ranks_have_gone() -> None:
    agent = Agent(TRAINMASTER_GRACE_SECONDS="25").run().give(events.TerminationRequested())
    assert [action.pids for action in agent.all(actions.Terminate)] == [(agent.pid,)]
    agent.wait(24.9)
    assert (agent.all(actions.Sweep), agent.exit_code) == ([], None)
    agent.wait(0.1)
    assert len(agent.all(actions.Sweep)) == 1
    agent.end(Ending(143, 15))
    assert (agent.exit_code, agent.termination_message.state) == (143, "Stopped")


def test_sigterm_without_any_attempt_just_ends_it() -> None:
    agent = Agent().give(events.TerminationRequested())
    assert (agent.exit_code, agent.termination_message) == (143, None)


def test_sigterm_after_the_end_leaves_with_the_report() -> None:
    agent = Agent().run().end(Ending(7)).give(events.TerminationRequested())
    assert (agent.exit_code, agent.termination_message.exit_code) == (7, 7)


def test_nothing_starts_once_sigterm_has_come() -> None:
    agent = Agent().run().give(events.TerminationRequested()).run(2)
    agent.end(Ending(143, 15))
    assert [action.report.attempt for action in agent.all(actions.Begin)] == [1]
    assert agent.exit_code == 143
