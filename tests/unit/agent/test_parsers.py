"""Whatever comes from a file or over the wire is parsed or refused, bounded, and never ends the agent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import JOB_UID
from trainmaster.agent.assignment import AssignmentFile
from trainmaster.agent.hang.heartbeats import parse_progress
from trainmaster.agent.network import http
from trainmaster.agent.network.lines import MAX_BAD_LINES, JsonLines
from trainmaster.wire.assignment import Assignment, newer, parse_text
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.report import Report

GOOD: dict[str, Any] = {
    "job": JOB_UID,
    "attempt": 3,
    "workers": [0, 1],
    "uids": ["a", "b"],
    "hosts": ["job-0.job.ns.svc", "job-1.job.ns.svc"],
    "master": "job-0.job.ns.svc",
    "port": 28533,
    "state": "Run",
    "graceSeconds": 0.4,
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))


def test_an_assignment_survives_the_wire() -> None:
    assert Assignment.parse(parse_text(json.dumps(GOOD))).to_wire() == {
        name: value for name, value in GOOD.items() if name != "signatures"
    }
    assert Assignment.parse(GOOD).node_rank(1, "b") == 1
    assert Assignment.parse(GOOD).node_rank(1, "other") is None
    assert Assignment.parse(GOOD).node_rank(2, "b") is None
    assert Assignment.parse({**GOOD, "uids": None}).node_rank(1, "other") == 1


def test_ranks_follow_from_the_workers_counts_where_they_differ() -> None:
    equal, uneven = Assignment.parse(GOOD), Assignment.parse({**GOOD, "processes": [8, 4]})
    assert (equal.first_rank(1, 4), equal.world_size(4)) == (4, 8)
    assert (uneven.first_rank(0, 8), uneven.first_rank(1, 4)) == (0, 8)
    assert uneven.world_size(4) == uneven.world_size(8) == 12


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attempt": -1}, "assignment.attempt: -1 is not a whole number from 0 to 1000000"),
        ({"attempt": True}, "assignment.attempt: True is not a whole number from 0 to 1000000"),
        ({"workers": []}, "assignment.workers: a list of 0 items is not a list of 1 to 1024 items"),
        ({"workers": [1, 1]}, "assignment.workers: an index stands there twice"),
        ({"hosts": ["x"]}, "assignment.hosts: 1 items for 2 workers"),
        ({"uids": ["x"]}, "assignment.uids: 1 items for 2 workers"),
        ({"processes": [8]}, "assignment.processes: 1 items for 2 workers"),
        ({"processes": [8, 0]}, "assignment.processes: 0 is not a whole number from 1 to 1024"),
        ({"port": 70000}, "assignment.port: 70000 is not a whole number from 20000 to 28979"),
        ({"port": 29500}, "assignment.port: 29500 is not a whole number from 20000 to 28979"),
        ({"attempt": 2**53}, "assignment.attempt: 9007199254740992 is not a whole number from 0 to 1000000"),
        ({"job": ""}, "assignment.job: '' is not a text of 1 to 64 characters"),
        ({"master": "10.0.0.7"}, "assignment.master: '10.0.0.7' is not the first of the hosts"),
        ({"master": "a\r\nb"}, "assignment.master: 'a\\r\\nb' is not a text of 1 to 253 characters"),
        ({"state": "Go"}, "assignment.state: 'Go' is neither Run nor Hold"),
        ({"graceSeconds": math.nan}, "assignment.graceSeconds: nan is not a number of seconds of at least 0"),
    ],
)
def test_a_bad_assignment_is_refused_by_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Assignment.parse({**GOOD, **change})
    assert str(refused.value) == sentence


def test_the_higher_attempt_wins_and_at_the_same_one_hold() -> None:
    def of(attempt: int, state: str) -> Assignment:
        return Assignment.parse({**GOOD, "attempt": attempt, "state": state})

    assert newer(None, of(1, "Run"))
    assert newer(of(1, "Hold"), of(2, "Run"))
    assert newer(of(2, "Run"), of(2, "Hold"))
    assert not newer(of(2, "Hold"), of(2, "Run"))
    assert not newer(of(2, "Run"), of(2, "Run"))
    assert not newer(of(2, "Run"), of(1, "Hold"))


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_text_is_an_assignment_or_refused(text: bytes) -> None:
    try:
        Assignment.parse(parse_text(text))
    except ProtocolError as refused:
        assert len(str(refused)) < 400


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_any_value_in_any_field_is_taken_or_refused(field: str, value: Any) -> None:
    try:
        taken = Assignment.parse({**GOOD, field: value})
    except ProtocolError as refused:
        assert field in str(refused) or "workers" in str(refused) or "master" in str(refused)
    else:
        assert Assignment.parse(json.loads(json.dumps(taken.to_wire()))) == taken


def test_deep_nesting_is_refused() -> None:
    deep = "[" * 100_000
    with pytest.raises(ProtocolError):
        parse_text(deep)
    assert parse_progress(b'{"step":' + b"[" * 4_000) is None
    assert list(JsonLines(200_000).feed(deep.encode() + b'\n{"a":1}\n')) == [{"a": 1}]


def test_the_annotations_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "assignment"
    file = AssignmentFile(str(path))
    assert file.poll() is None
    path.write_text("")
    assert file.poll() is None, "the annotation isn't set yet"
    path.unlink()
    path.write_text(json.dumps(GOOD))
    assert file.poll() == GOOD
    assert file.poll() is None
    path.write_text("{")
    with pytest.raises(ProtocolError):
        file.poll()


def test_lines_that_are_no_objects_are_given_up_after_some() -> None:
    # Each costs an exception: a piece of 64 KiB of line breaks kept the agent busy for a tenth of a second.
    lines = JsonLines()
    with pytest.raises(ProtocolError):
        list(lines.feed(b"\n" * 65_536))
    assert lines.count == MAX_BAD_LINES + 1


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_lines_come_out_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces) + b"\n"
    cut = JsonLines()
    found = [line for piece in [*pieces, b"\n"] for line in cut.feed(piece)]
    assert found == list(JsonLines().feed(whole))


def test_a_line_without_an_end_is_given_up() -> None:
    lines = JsonLines(100)
    assert list(lines.feed(b"x" * 100)) == []
    with pytest.raises(ProtocolError):
        list(lines.feed(b"x"))


@given(st.lists(st.binary(max_size=40), max_size=60))
def test_any_bytes_are_a_request_or_refused(pieces: list[bytes]) -> None:
    requests = http.Requests()
    try:
        for piece in pieces:
            requests.feed(piece)
            if requests.head() is not None:
                requests.body()
    except http.BadRequest as refused:
        assert refused.status in http.REASONS


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: ²\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("GET http://x/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nname : value\r\n\r\n", 400),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nx: " + "y" * 9_000, 431),
        ("GET / HTTP/1.1\r\nx: " + "y" * 9_000 + "\r\n\r\n", 431),
    ],
)
def test_a_request_out_of_bounds_is_answered_with_its_status(text: str, status: int) -> None:
    requests = http.Requests()
    requests.feed(text.encode("latin-1"))
    with pytest.raises(http.BadRequest) as refused:
        requests.head()
    assert refused.value.status == status


def test_requests_in_one_piece_are_taken_one_after_the_other() -> None:
    requests = http.Requests()
    requests.feed(b"POST /a?x=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.0\r\n\r\nrest")
    first = requests.head()
    assert first is not None and (first.method, first.path, first.keep_alive) == ("POST", "/a", True)
    assert requests.body() == b"hi"
    second = requests.head()
    assert second is not None and (second.path, second.keep_alive, requests.body()) == ("/b", False, b"")
    assert requests.rest() == b"rest"


def test_a_request_is_read_however_it_is_cut_and_its_head_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse_head = http.parse_head

    def recorded(data: bytes) -> http.Head:
        parsed.append(data)
        return parse_head(data)

    monkeypatch.setattr(http, "parse_head", recorded)
    text = b"POST /v1/ack HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    for cut in range(1, len(text)):
        requests = http.Requests()
        requests.feed(text[:cut])
        assert requests.head() is None
        requests.feed(text[cut:])
        for byte in b'{"seq":1}':
            assert requests.head() is not None and requests.body() is None
            requests.feed(bytes([byte]))
        assert requests.body() == b'{"seq":1}'
    assert parsed == [text[:-4]] * (len(text) - 1)


def test_who_sends_a_head_byte_by_byte_is_given_up_after_some_pieces() -> None:
    requests = http.Requests()
    with pytest.raises(http.BadRequest) as refused:
        for byte in b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 1_000:
            requests.feed(bytes([byte]))
            requests.head()
    assert refused.value.status == 408 and len(requests) == http.MAX_HEAD_PIECES


@given(JSON)
def test_any_report_is_bounded_or_refused(value: Any) -> None:
    base = {"state": "Failed", "attempt": 1, "worker": 0}
    for data in (value, {**base, "error": value, "exitCode": value, "at": value, "uid": value, "rank": value}):
        found = Report.read(data)
        if found is not None:
            assert Report.read(json.loads(json.dumps(found.to_wire(), allow_nan=False))) is not None


@given(st.text(max_size=3_000))
def test_a_termination_message_fits_what_the_kubelet_keeps(error: str) -> None:
    # Kubernetes: MaxContainerTerminationMessageLength in pkg/kubelet/container/runtime.go is 4 KiB.
    made = Report(1, 0, "uid", "Failed", error=error)
    message = made.termination_message()
    assert len(message.encode()) <= 4_000
    assert error.endswith(json.loads(message)["error"])


@given(JSON | st.dictionaries(st.sampled_from(["step", "loss", "section", "result", "message"]), JSON))
def test_any_progress_is_bounded_and_finite(value: Any) -> None:
    found = RankProgress.salvage(value)
    if found is not None:
        assert len(json.dumps(found.to_wire(), allow_nan=False)) < 8_192
        assert RankProgress.parse(found.to_wire()) == found, "what an agent keeps is what its operator accepts"
