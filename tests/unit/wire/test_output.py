"""`wire.output`: the end of a worker's output fits a line, whatever ranks print, and what comes is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_operator.agent.process.output import PrintedEnd
from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.limits import MAX_KEPT_OUTPUT_BYTES, MAX_LINE_BYTES, MAX_OUTPUT_BYTES
from trainmaster_operator.wire.output import OutputLine, newest_lines, output_share
from trainmaster_operator.wire.stream import parse_line

PRINTED = st.lists(
    st.tuples(st.integers(0, 2_000_000_000_000), st.text(max_size=3_000).filter(lambda t: "\n" not in t)), max_size=60
)


@given(printed=PRINTED, workers=st.integers(1, 1_024))
def test_the_newest_lines_fit_whatever_was_printed(printed: list[tuple[int, str]], workers: int) -> None:
    limit = output_share(workers)
    kept = newest_lines(printed, limit)
    assert kept == printed[len(printed) - len(kept) :]
    line = OutputLine(1_000_000, 1_023, "u" * 64, tuple(text for _, text in kept), tuple(time for time, _ in kept))
    raw = json.dumps(line.to_wire(), separators=(",", ":")).encode()
    assert len(raw) <= limit <= MAX_OUTPUT_BYTES < MAX_LINE_BYTES
    found = parse_line(raw)
    assert isinstance(found, OutputLine) and found.times == line.times
    assert [text.replace("\x00", "") for text in line.lines] == list(found.lines) or not printed


def test_all_workers_shares_fit_what_a_leader_keeps() -> None:
    assert output_share(1) == MAX_OUTPUT_BYTES
    assert all(workers * output_share(workers) <= MAX_KEPT_OUTPUT_BYTES for workers in range(2, 128))


@pytest.mark.parametrize(
    "fields",
    [
        {"lines": "text"},
        {"lines": ["a"], "after": []},
        {"lines": ["a"], "after": [-1]},
        {"lines": ["a"], "after": [True]},
        {"after": None},
        {"attempt": "3"},
        {"worker": 2**40},
    ],
    ids=str,
)
def test_a_line_that_isnt_one_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        OutputLine.parse({**OutputLine(3, 1, "uid", ("a",), (7,)).to_wire(), **fields})
    strange = OutputLine.parse({"attempt": 3, "lines": [None, "a\nb"], "after": [0, 1]})
    assert strange == OutputLine(3, 0, "", ("", "a b"), (0, 1))


def test_the_agent_holds_the_end_of_what_it_printed_only() -> None:
    end = PrintedEnd()
    for number in range(2_000):
        end.add(b"[rank 0]: step %d\n[rank 0]: " % number + b"x" * 200 + b"\n")
    lines = [line for _, line in end.lines()]
    assert lines[-2:] == ["[rank 0]: step 1999", "[rank 0]: " + "x" * 200] and lines[0].startswith("[rank 0]: step")
    assert MAX_OUTPUT_BYTES - 1_000 < sum(map(len, lines)) <= MAX_OUTPUT_BYTES
    times = [time for time, _ in end.lines()]
    assert times == sorted(times)
    end.add(b"y" * 1_000_000 + b"\n")
    assert sum(len(line) for _, line in end.lines()) <= MAX_OUTPUT_BYTES
