"""An attempt begins once its code is there; if the code is unavailable, it fails with the reason (`planner/plan`)."""

from __future__ import annotations

from tests.unit.agent.planner.simulated import Agent
from trainmaster_operator.agent.planner import actions
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.events import KILLED, CodeFetched, CodeRefused, WarmProcessEnded

ONE, TWO = "1" * 64, "2" * 64
OK = Ending(0)


def running(**environ: str) -> Agent:
    agent = Agent(**environ).run(code=ONE)
    return agent.give(CodeFetched(ONE))


def test_nothing_is_begun_or_reported_before_the_code_is_there() -> None:
    agent = Agent().run(code=ONE)
    assert [action.digest for action in agent.all(actions.FetchCode)] == [ONE]
    assert not agent.all(actions.Begin) and not agent.all(actions.PublishReport)
    agent.give(CodeFetched(TWO))
    assert not agent.all(actions.Begin)
    agent.give(CodeFetched(ONE))
    assert agent.names.index("FetchCode") < agent.names.index("Begin") < agent.names.index("Launch")


def test_code_that_cant_be_had_fails_the_attempt_and_is_looked_for_again_in_the_next() -> None:
    agent = Agent().run(code=ONE).give(CodeRefused(ONE, "ConfigMap bert-code doesn't have it"))
    report = agent.state.report
    assert report is not None
    assert (report.state, report.reason, report.attempt) == ("Failed", "LaunchError", 1)
    assert report.error == "ConfigMap bert-code doesn't have it"
    assert not agent.all(actions.Launch)
    agent.run(2, code=ONE)
    assert len(agent.all(actions.FetchCode)) == 2
    agent.give(CodeFetched(ONE))
    assert len(agent.all(actions.Launch)) == 1


def test_the_same_code_isnt_fetched_twice() -> None:
    agent = running().end(OK)
    agent.run(2, code=ONE)
    assert len(agent.all(actions.FetchCode)) == 1
    assert len(agent.all(actions.Launch)) == 2


def test_new_code_is_only_fetched_when_nothing_of_the_old_attempt_runs() -> None:
    agent = running().run(2, code=TWO)
    assert [action.digest for action in agent.all(actions.FetchCode)] == [ONE]
    agent.end(Ending(143, 15))
    assert [action.digest for action in agent.all(actions.FetchCode)] == [ONE, TWO]


def test_a_setup_line_runs_again_for_new_code() -> None:
    from trainmaster_operator.agent.planner.events import SetupEnded

    agent = Agent(TRAINMASTER_SETUP="pip install -r requirements.txt").run(code=ONE).give(CodeFetched(ONE))
    agent.give(SetupEnded({"PATH": "/bin"})).end(OK)
    agent.run(2, code=TWO).give(CodeFetched(TWO))
    assert len(agent.all(actions.RunSetup)) == 2 and len(agent.all(actions.Launch)) == 1
    agent.give(SetupEnded({"PATH": "/new"}))
    assert agent.all(actions.Launch)[-1].environ == {"PATH": "/new"}


def test_a_warm_process_that_has_imported_users_modules_is_started_anew() -> None:
    agent = running(TRAINMASTER_WARM_START="true", TRAINMASTER_PRELOAD="lib.data").end(OK)
    agent.run(2, code=TWO).give(CodeFetched(TWO))
    assert len(agent.all(actions.EndWarm)) == 1 and len(agent.all(actions.Launch)) == 1
    agent.give(WarmProcessEnded(KILLED))
    assert len(agent.all(actions.WarmUp)) == 2 and len(agent.all(actions.Launch)) == 2


def test_a_warm_process_without_them_stays() -> None:
    agent = running(TRAINMASTER_WARM_START="true").end(OK)
    agent.run(2, code=TWO).give(CodeFetched(TWO))
    assert not agent.all(actions.EndWarm) and len(agent.all(actions.WarmUp)) == 1
