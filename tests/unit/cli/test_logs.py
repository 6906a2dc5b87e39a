"""Printed lines have labels, colours and times, and the kubelet's timestamps are read."""

from __future__ import annotations

import pytest

from trainmaster.cli import logs
from trainmaster.cli.logs import Printer
from trainmaster.client.time_order import WorkerLine
from trainmaster_operator.api.kept_logs import StampedLine, stamped_line

LINES = (
    WorkerLine(1.5, 0, "[rank 0]: a"),
    WorkerLine(2.0, 1, "--- attempt 2 ---"),
    WorkerLine(2.1, 0, "--- attempt 2 ---"),
    WorkerLine(3.0, 1, "[agent]: b"),
)


def printed(printer: Printer, capsys: pytest.CaptureFixture[str]) -> list[str]:
    for line in LINES:
        printer(line)
    return capsys.readouterr().out.splitlines()


def test_several_workers_lines_are_told_apart_and_an_attempt_begins_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Printer(), capsys) == ["[rank 0]: a", "--- attempt 2 ---", "[worker 1] [agent]: b"]
    assert printed(Printer(separators=False), capsys) == ["[rank 0]: a", "[worker 1] [agent]: b"]


def test_one_worker_s_lines_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Printer(several=False), capsys) == [line.text for line in LINES]


def test_the_worker_stands_before_every_line_or_nothing_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Printer(prefix=True), capsys) == [f"[worker {line.worker}] {line.text}" for line in LINES]
    assert printed(Printer(prefix=False, separators=False), capsys) == ["a", "[agent]: b"]


def test_times_are_utc_with_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Printer(timestamps=True), capsys)[0] == "1970-01-01T00:00:01.500Z [rank 0]: a"


def test_on_a_terminal_every_rank_has_a_colour_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "shows_colours", lambda: True)
    printer = Printer()
    for rank in range(len(logs.COLOURS)):
        printer(WorkerLine(0, 0, f"[rank {rank}]: x"))
    labels = {line.partition("[rank")[0] for line in capsys.readouterr().out.splitlines()}
    assert len(labels) == len(logs.COLOURS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1970-01-01T00:00:01.500000000Z text here", StampedLine(1.5, "text here")),
        ("1970-01-01T02:00:01.500000000+02:00 text", StampedLine(1.5, "text")),
        ("1970-01-01T00:00:01Z ", StampedLine(1.0, "")),
        ("1970-01-01T00:00:01Z", StampedLine(1.0, "")),
        ("1970-01-01T00:00:01.5 without a zone", StampedLine(None, "1970-01-01T00:00:01.5 without a zone")),
        ("no time at all in this one", StampedLine(None, "no time at all in this one")),
        ("", StampedLine(None, "")),
    ],
)
def test_a_line_s_time_is_told_from_its_text(line: str, found: StampedLine) -> None:
    assert stamped_line(line) == found
