"""Stacks of ranks: who is asked for them, and what is kept of them."""

from __future__ import annotations

import json
import os
import signal

from trainmaster.agent.hang import stacks
from trainmaster.agent.hang.kernel_view import describe_process


def test_stacks_that_were_asked_for_do_not_hide_a_later_error() -> None:
    asked = 'Thread 0x0001 (most recent call first):\n  File "x.py", line 1 in wait\nValueError: later\n'
    assert stacks.shorten_stacks(asked) == ""
    fatal = f"{asked}Fatal Python error: Aborted\n\nCurrent thread 0x0002 (most recent call first):\n  File y\n"
    assert stacks.shorten_stacks(fatal).splitlines()[-4:] == [
        "ValueError: later",
        "Fatal Python error: Aborted",
        "Current thread 0x0002 (most recent call first):",
        "  File y",
    ]


def test_texts_are_bounded_as_they_travel() -> None:
    assert stacks.shortened("abc", 100) == "abc"
    for text in ("é" * 1_000, '"' * 1_000, "\n\x00" * 500):
        short = stacks.shortened(text, 300)
        assert 0 < len(json.dumps(short)) <= 300


def test_a_signal_for_stacks_is_not_sent_to_who_does_not_catch_it() -> None:
    assert not stacks.ask_for_stacks(os.getpid())
    assert "State" not in describe_process(os.getpid())
    received = []
    before = signal.signal(stacks.STACKS_SIGNAL, lambda number, _frame: received.append(number))
    try:
        assert stacks.ask_for_stacks(os.getpid())
    finally:
        signal.signal(stacks.STACKS_SIGNAL, before)
    assert received == [stacks.STACKS_SIGNAL]
