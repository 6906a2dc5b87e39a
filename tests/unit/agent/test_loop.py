"""The agent's loop calls again and again (`agent/loop`)."""

from __future__ import annotations

from trainmaster_operator.agent.loop import Loop


def test_a_repetition_comes_at_once_and_then_as_often_as_it_was_changed_to() -> None:
    loop, calls = Loop(), list[int]()
    repetition = loop.call_every(60.0, lambda: calls.append(1))
    loop.run_once(0.01)
    assert not calls
    repetition.seconds = 0.005
    repetition.now()
    assert len(calls) == 1
    for count in (2, 3):
        loop.run_once(5.0)
        assert len(calls) == count
    repetition.seconds = 60.0
    loop.run_once(5.0)
    loop.run_once(0.02)
    assert len(calls) == 4, "one was due already"
