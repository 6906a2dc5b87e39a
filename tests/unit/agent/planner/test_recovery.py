"""A worker measures the phases from a fault to the next attempt's first step."""

from __future__ import annotations

from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.wire.joining import Stop
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import ProgressLine, Recovery

from .simulated import WORKER, Agent


def progressed(agent: Agent, attempt: int, first_step_at: float | None = None, **progress: float) -> Recovery | None:
    """Returns the recovery in the line that is sent for this progress."""
    line = ProgressLine(attempt, WORKER, {1: RankProgress()._replace(**progress)})
    agent.give(events.Progressed(line, first_step_at))
    message = agent.all(actions.Publish)[-1].message
    assert isinstance(message, ProgressLine)
    return message.recovery


def test_each_part_is_timed_from_the_moment_in_which_the_fault_was_seen() -> None:
    agent = Agent().run().wait(100)
    fault_at = agent.wall
    agent.give(events.ProcessEnded(agent.pid, Ending(1)))
    agent.wait(0.25).give(events.RunEmptied())
    agent.wait(0.25).run(2)
    assert progressed(agent, 2, joined_at=fault_at + 0.75, restored_at=fault_at + 1) == Recovery(
        detected=0.0, assigned=0.5, stopped=0.25, launched=0.5, joined=0.75, restored=1.0
    )
    done = progressed(agent, 2, fault_at + 1.5, joined_at=fault_at + 0.75)
    assert done == Recovery(detected=0.0, assigned=0.5, stopped=0.25, launched=0.5, joined=0.75, first_step=1.5)


def test_who_is_stopped_for_anothers_fault_times_its_own_way() -> None:
    agent = Agent().run().wait(10)
    fault_at = agent.wall
    agent.give(Stop(1, 0.4)).wait(0.125).end(Ending(143, 15)).wait(0.125).run(2)
    done = progressed(agent, 2, fault_at + 1)
    assert done == Recovery(detected=0.0, assigned=0.25, stopped=0.125, launched=0.25, first_step=1.0)


def test_a_hang_began_with_the_last_progress() -> None:
    agent = Agent().run().wait(100)
    agent.give(events.AttemptFailed(1, "Hung", "no progress", 1, silent=10.0)).end(Ending(137, 9)).run(2)
    done = progressed(agent, 2)
    assert done is not None
    assert (done.detected, done.assigned) == (10.0, 10.0)


def test_the_first_attempt_and_one_after_an_attempt_that_another_agent_saw_end_are_no_recovery() -> None:
    agent = Agent().run()
    assert progressed(agent, 1) is None
    agent.start()
    assert progressed(agent.run(3), 3) is None


def test_of_two_faults_in_a_row_the_later_one_counts() -> None:
    agent = Agent().run().end(Ending(1)).wait(1).run(2).wait(1).end(Ending(1)).wait(0.5).run(3)
    done = progressed(agent, 3)
    assert done is not None
    assert done.assigned == 0.5


def test_a_clock_that_was_set_back_makes_no_time_before_the_fault() -> None:
    agent = Agent().run().end(Ending(1)).run(2)
    assert progressed(agent, 2, joined_at=1.0) == Recovery(0.0, 0.0, 0.0, 0.0, joined=0.0)
