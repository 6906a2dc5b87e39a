"""`KeptLog`: what was kept of a worker goes on with what its pod, or the next one, has printed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.api.kept_logs import KeptLog

# What pods print one after the other: lines a few milliseconds apart, each pod's first with its attempt's mark or not.
PODS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=4)


def printed(pods: list[list[int]]) -> list[KeptLog]:
    """The log of each pod. Every line is another one, but several may have one time."""
    logs, time = [], 1_000
    for number, steps in enumerate(pods, 1):
        time += 10
        lines, times = ([f"--- attempt {number} ---"], [time]) if number > 1 else ([], [])
        for place, step in enumerate(steps):
            time += step
            lines.append(f"pod {number} line {place}")
            times.append(time)
        logs.append(KeptLog(tuple(lines), tuple(times)))
    return logs


def tail(log: KeptLog, first: int) -> KeptLog:
    return KeptLog(log.lines[first:], log.times[first:] if log.times else None, cut=first > 0)


@given(pods=PODS, data=st.data())
def test_pods_that_are_read_again_and_again_are_kept_once(pods: list[list[int]], data: st.DataObject) -> None:
    logs, kept = printed(pods), KeptLog()
    for log in logs:
        until = data.draw(st.integers(0, len(log.lines)))
        # Read while it still prints, then to its end, then once more.
        for part in (KeptLog(log.lines[:until], log.times and log.times[:until]), log, log):
            kept = kept.continued(part)
    assert kept.lines == tuple(line for log in logs for line in log.lines) and not kept.cut
    assert kept.times == tuple(time for log in logs for time in log.times or ())


@given(pods=PODS, data=st.data())
def test_of_a_log_whose_beginning_is_gone_no_line_is_kept_twice(pods: list[list[int]], data: st.DataObject) -> None:
    logs, kept = printed(pods), KeptLog()
    for log in logs:
        for _ in range(2):
            kept = kept.continued(tail(log, data.draw(st.integers(0, len(log.lines) - 1))))
    assert len(set(kept.lines)) == len(kept.lines)
    assert kept.lines[-1] == logs[-1].lines[-1]
    assert list(kept.times or ()) == sorted(kept.times or ())


def test_what_was_kept_before_a_pods_log_is_found_by_its_attempt_else_by_its_time_else_by_its_line() -> None:
    kept = KeptLog(("a", "--- attempt 2 ---", "b", "c"), (1, 2, 3, 4))
    # A node's clock may be behind.
    assert kept.before("--- attempt 2 ---", 0).lines == ("a",)
    assert kept.before("--- attempt 3 ---", 0) == kept
    assert kept.before("c", 4).lines == ("a", "--- attempt 2 ---", "b")
    assert kept.before("d", 9) == kept
    assert KeptLog(("a", "b")).before("b", 9).lines == ("a",)
    assert kept.before("c", None).lines == ("a", "--- attempt 2 ---", "b")
