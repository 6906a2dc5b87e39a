"""The agent asks ranks for their stacks, and keeps a part of each."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from trainmaster_operator.agent.process import kernel, stacks
from trainmaster_operator.agent.process.kernel import describe_process


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


def test_the_kernels_view_says_of_each_thread_whether_it_runs_or_where_it_waits() -> None:
    ended, native_id = threading.Event(), SimpleQueue[int]()

    def wait() -> None:
        native_id.put(threading.get_native_id())
        ended.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(wait)
        waiting, until = native_id.get(), time.monotonic() + 20
        try:
            # The thread needs a moment to reach its wait, longer on a busy machine.
            while (lines := thread_lines())[waiting] == "runs" and time.monotonic() < until:
                time.sleep(0.001)
        finally:
            ended.set()
    assert lines[threading.get_native_id()] == "runs"
    # Some kernels don't show the place.
    assert re.fullmatch(r"waits in [a-z_]+|S \(sleeping\)", lines[waiting])


def thread_lines() -> dict[int, str]:
    process, *threads = describe_process(os.getpid()).splitlines()
    assert process.startswith(f"pid {os.getpid()} ")
    return {int(line.split()[1]): line.partition(": ")[2] for line in threads}


@pytest.mark.parametrize(("place", "said"), [("futex_wait_queue", "waits in futex_wait_queue"), ("0", "gone")])
def test_a_thread_of_which_the_kernel_names_no_place_has_its_state(place: str, said: str) -> None:
    beyond_any_process = 2**22 + 1
    assert kernel._at(place, beyond_any_process) == said


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
