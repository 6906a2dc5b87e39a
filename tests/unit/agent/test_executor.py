"""The executor sleeps until the plan's next deadline, and misses no deadline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.signer import environment
from trainmaster_operator.agent import executor, loop
from trainmaster_operator.agent.executor import AgentExecutor
from trainmaster_operator.agent.planner import events
from trainmaster_operator.agent.planner.actions import SaveReport
from trainmaster_operator.agent.planner.plan import PATIENCE_SECONDS
from trainmaster_operator.agent.planner.state import LeaderContact, MasterContact, Now
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.report import Report

from .planner.simulated import UID, UNWATCHED, WATCHED, WORKER, assignment

ENDED_AT = 1_000.0


@pytest.mark.parametrize("seconds", [0.0, 5.0], ids=["a quick disk", "a slow disk"])
def test_a_deadline_that_passes_while_actions_are_performed_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """On a loaded machine, performing a plan's actions may take longer than the time to its next deadline."""
    clock = SimpleNamespace(now=ENDED_AT)
    monkeypatch.setattr(
        executor, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 1_700_000_000.0 + clock.now)
    )
    variables = {"TRAINMASTER_WORKER": str(WORKER), "TRAINMASTER_POD_UID": UID, "TRAINMASTER_AGENT_PORT": "0"}
    agent = AgentExecutor(
        read_settings({**environment(), **variables, "TRAINMASTER_STATE_DIR": str(tmp_path)}), ["true"], {}
    )
    contact = LeaderContact(0, True, MasterContact(True, True))
    report = Report(1, WORKER, UID, "Failed", exit_code=1, reason="Error")
    asked = assignment(1)
    agent._state = agent._state._replace(
        assignment=asked, applied=asked, started=1, contact=contact, report=report, published=report, ended_at=ENDED_AT
    )
    saved = []

    def save(action: SaveReport) -> None:
        saved.append(action.report)
        clock.now += seconds

    monkeypatch.setitem(executor._PERFORMERS, SaveReport, lambda _executor, action: save(action))
    monkeypatch.setattr(agent._loop, "run_once", lambda limit: setattr(clock, "now", clock.now + limit))
    agent._carry_out(Now(clock.now, 0.0))
    assert saved == [report]
    for _ in range(3):
        agent._wait()
    assert clock.now >= ENDED_AT + PATIENCE_SECONDS
    assert events.DeadlinePassed() in agent._events


def test_the_assignments_file_is_read_at_once_when_no_operator_can_push_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"TRAINMASTER_WORKER": str(WORKER), "TRAINMASTER_AGENT_PORT": "0"}
    agent = AgentExecutor(
        read_settings({**environment(), **variables, "TRAINMASTER_STATE_DIR": str(tmp_path)}), ["true"], {}
    )
    polls: list[None] = []
    monkeypatch.setattr(agent, "_file", SimpleNamespace(poll=lambda: polls.append(None)))
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for contact, seconds in ((WATCHED, executor.PUSHED_FILE_SECONDS), (UNWATCHED, executor.FILE_SECONDS)):
        agent._state = agent._state._replace(contact=contact)
        agent._poll_file()
        assert agent._next_poll.at == clock.now + seconds
    agent._state = agent._state._replace(contact=WATCHED)
    monkeypatch.setattr(agent._network, "contact", lambda now: UNWATCHED)
    polls.clear()
    agent._see_leader(Now(0.0, 0.0))
    assert len(polls) == 1
