"""The lines of a leader's stream are read as they were written, and a worker's ranks are never left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import JSON
from trainmaster_operator.agent.process.output import PrintedEnd
from trainmaster_operator.api.v1alpha1 import RecoveryTimes
from trainmaster_operator.wire.joining import (
    Ack,
    Assigned,
    Collect,
    Environment,
    FollowerMessage,
    Hung,
    Joined,
    LeaderMessage,
    Mismatch,
    Modules,
    Patience,
    Reported,
    Resumed,
    Seen,
    Stalled,
    Stop,
    Watched,
    parse_from_follower,
    parse_from_leader,
)
from trainmaster_operator.wire.limits import (
    MAX_EVIDENCE_BYTES,
    MAX_GPUS,
    MAX_KEPT_OUTPUT_BYTES,
    MAX_LINE_BYTES,
    MAX_METRICS,
    MAX_OUTPUT_BYTES,
    MAX_PROCESSES,
    MAX_RANKS_IN_LINE,
    MAX_STALL_CHARACTERS,
)
from trainmaster_operator.wire.ranks import RankProgress, RankState
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import (
    EvidenceLine,
    Hello,
    OutputLine,
    Ping,
    ProgressLine,
    Recovery,
    ReportLine,
    StallLine,
    StreamLine,
    SystemLine,
    WorkerLine,
    newest_lines,
    output_share,
    parse_line,
    split,
)
from trainmaster_operator.wire.system import GpuSample, SystemSample
from trainmaster_operator.wire.values import ProtocolError

REPORT = Report(3, 1, "u", "Failed", "gpu-7", 5, 1, None, "Error", "words", 1763700000.123, culprit=False)
PROGRESS = ProgressLine(3, 1, {5: RankProgress(step=120, loss=0.31, section="train", result=(("a", 1.0),))}, 7.5)
RECOVERY = Recovery(
    detected=0.0, assigned=0.05, stopped=0.02, launched=0.07, joined=None, restored=0.1, first_step=0.25
)
WATCHED = RankState(120, "train", 12.3, 10.0, "x", True, "S", 240, "device", True, 3, text="stack")
LATE = WATCHED._replace(quiet_seconds=12.3, notice_seconds=5.0, usual_seconds=0.05, active=True)
EVIDENCE = EvidenceLine(3, 1, {5: LATE._replace(place="train.py:41 in step: `x = 1`", operation="all_reduce")}, 7.5)
STALL = StallLine(3, 1763700000.123, 5, "train", 0.05, 60.0, "rank 5 is at train.py:41 in step")
STREAM: tuple[StreamLine, ...] = (
    Hello(0, "u", 3, (WorkerLine(0, "u", 3, True), WorkerLine(1, "v", 2, False))),
    WorkerLine(1, "u", 3, False),
    ReportLine(17, REPORT),
    PROGRESS,
    PROGRESS._replace(recovery=RECOVERY),
    EVIDENCE._replace(more=True),
    STALL,
    STALL._replace(rank=None, section="", usual_seconds=None, restart_seconds=0.0),
    StallLine(3),
    Ping(),
)
FOLLOWERS: tuple[FollowerMessage, ...] = (
    Joined("uid", 1, "u", 3),
    Reported(REPORT),
    PROGRESS,
    EVIDENCE._replace(notice=True),
    EVIDENCE,
    Stalled(3),
    Stalled(3, notice=True),
    Resumed(3),
    Seen(4),
    Environment(4, {"torch": "2.11"}),
    Modules(("torch._dynamo", "numpy")),
    Ping(),
)
LEADERS: tuple[LeaderMessage, ...] = (
    Assigned({"attempt": 3, "signatures": {}}),
    Ack(3),
    Watched(True, "u"),
    Watched(False),
    Stop(3, 0.4, 1.5, REPORT),
    Stop(3, 0.4),
    Collect(3, 40_000),
    Collect(3, 40_000, notice=True),
    Hung(3, 5, "rank 5 made no progress"),
    Patience(3, 45.0),
    Mismatch(3, ("torch differs",)),
    Modules(("torch._dynamo", "numpy")),
    Ping(),
)


@pytest.mark.parametrize(
    "wrong",
    [{"since": -1}, {"since": "now"}, {"rank": -1}, {"rank": 1.5}, {"usualSeconds": "x"}, {"restartSeconds": -1}],
)
def test_a_stall_with_a_wrong_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse_line(json.dumps({**STALL.to_wire(), **wrong}).encode())


def test_a_stalls_message_is_one_short_line() -> None:
    line = parse_line(json.dumps({**STALL.to_wire(), "message": "a\n\x1b[31mb" * 1_000, "section": "lunch"}).encode())
    assert isinstance(line, StallLine) and line.section == ""
    assert len(line.message) == MAX_STALL_CHARACTERS and line.message.startswith("a  [31mba ")


def parse_text(data: dict[str, Any]) -> StreamLine:
    """Returns a line as text, or a ping if it is too deep for Python to write."""
    try:
        return parse_line(json.dumps(data).encode())
    except RecursionError:
        return Ping()


@pytest.mark.parametrize("line", STREAM, ids=lambda line: type(line).__name__)
def test_a_line_of_the_stream_survives_the_wire(line: StreamLine) -> None:
    assert parse_line(json.dumps(line.to_wire()).encode()) == line


@pytest.mark.parametrize("message", FOLLOWERS, ids=lambda message: type(message).__name__)
def test_what_a_follower_says_survives_the_wire(message: FollowerMessage) -> None:
    assert parse_from_follower(json.loads(json.dumps(message.to_wire()))) == message


@pytest.mark.parametrize("message", LEADERS, ids=lambda message: type(message).__name__)
def test_what_a_leader_says_survives_the_wire(message: LeaderMessage) -> None:
    assert parse_from_leader(json.loads(json.dumps(message.to_wire()))) == message


@given(st.sampled_from([line.to_wire() for line in (*STREAM, *FOLLOWERS, *LEADERS)]), st.data())
def test_anything_in_any_field_is_a_message_or_refused(line: dict[str, Any], data: st.DataObject) -> None:
    damaged = {**line, data.draw(st.sampled_from(sorted(line))): data.draw(JSON)}
    for parse in (parse_text, parse_from_follower, parse_from_leader):
        try:
            message = parse(damaged)
        except ProtocolError as error:
            assert len(str(error)) < 300
        else:
            if not isinstance(message, Assigned):
                json.dumps(message.to_wire(), allow_nan=False).encode()


def test_of_a_worker_with_as_many_ranks_as_one_can_have_none_is_left_out() -> None:
    """Its evidence used to be cut to 128 ranks and its progress to 256, though a worker may have 1,024."""
    text = "\n" * (MAX_EVIDENCE_BYTES // MAX_RANKS_IN_LINE - 250)
    state = RankState(10**9, "checkpoint", 12_345.678, 1_800.0, "failurePolicy.hang.firstStepSeconds", True, "S", 10**9)
    progress = RankProgress(*[10**9] * 2, *[1234567.891] * 8, 10**9, *[1234567.891] * 3, "checkpoint", 60.0)
    whole_evidence = EvidenceLine(3, 1, {rank: state._replace(text=text) for rank in range(MAX_PROCESSES)})
    whole_progress = ProgressLine(3, 1, dict.fromkeys(range(MAX_PROCESSES), progress))
    for lines in (split(whole_evidence), split(whole_progress)):
        written = [json.dumps(line.to_wire(), separators=(",", ":")).encode() for line in lines]
        assert max(map(len, written)) < MAX_LINE_BYTES
        read = [parse_line(line) for line in written]
        assert read == lines
        ranks = [rank for line in lines for rank in line.ranks]
        assert ranks == list(range(MAX_PROCESSES))
        assert [line.more for line in lines] == [True] * (len(lines) - 1) + [False]


def test_a_worker_without_ranks_answers_in_one_line() -> None:
    assert split(EvidenceLine(3, 1, {})) == [EvidenceLine(3, 1, {})]


JOBS = Path(__file__).resolve().parents[3] / "docs" / "jobs.md"


def test_a_status_has_the_protocols_parts_in_their_order() -> None:
    total, _repeated, *parts = RecoveryTimes.model_fields
    assert (total, tuple(parts)) == ("seconds", Recovery._fields)
    sent = Recovery(**dict.fromkeys(Recovery._fields, 1.0)).to_wire()
    assert list(sent) == [RecoveryTimes.model_fields[part].alias for part in parts]


def test_the_guide_explains_each_part() -> None:
    _, _, table = JOBS.read_text().partition("| part | until | what makes it long |\n")
    rows, _, _ = table.partition("\n\n")
    explained = re.findall(r"^\| `([a-z ]+)` \|", rows, re.MULTILINE)
    assert explained == [part.replace("_", " ") for part in Recovery._fields]


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


def test_lines_of_ranks_with_many_metrics_are_short_enough_for_their_reader() -> None:
    metrics = tuple((f"metric_{'x' * 55}{number:02}", 1.2345678901234567e-100) for number in range(MAX_METRICS))
    result = tuple(("\u20ac" * 60 + str(number), 0.5) for number in range(16))
    ranks = {rank: RankProgress(step=rank, metrics=metrics, result=result, message="é" * 200) for rank in range(300)}
    ranks |= {rank: RankProgress(step=rank) for rank in range(300, 600)}
    pieces = split(ProgressLine(3, 1, ranks, 5.0))
    assert [rank for piece in pieces for rank in piece.ranks] == list(range(600))
    assert all(piece.more for piece in pieces[:-1]) and not pieces[-1].more
    for piece in pieces:
        data = json.dumps(piece.to_wire()).encode()
        assert len(data) <= MAX_LINE_BYTES and parse_line(data) == piece


def test_a_workers_system_is_read_as_it_was_written() -> None:
    gpus = {0: GpuSample(0.5, 1e9, 2e9), 7: GpuSample()}
    line = SystemLine(3, 1, SystemSample(cpu_cores=1.5, memory_bytes=5.0, gpus=gpus), 7.25)
    assert parse_line(json.dumps(line.to_wire()).encode()) == line
    assert parse_from_follower({**line.to_wire(), "worker": None} | {"worker": 1}) == line
    hostile = {"cpuCores": -1, "memoryBytes": "5", "gpus": {str(n): {"gpuUtilization": 50} for n in range(1_000)}}
    found = parse_line(json.dumps({"type": "system", "attempt": 3, "worker": 1, **hostile}).encode())
    assert isinstance(found, SystemLine) and (found.sample.cpu_cores, found.sample.memory_bytes) == (None, None)
    assert len(found.sample.gpus) == MAX_GPUS and found.sample.gpus[5].gpu_utilization == 1.0
    assert parse_line(b'{"type":"system","attempt":3,"worker":1,"gpus":[1]}') == SystemLine(3, 1, SystemSample())
