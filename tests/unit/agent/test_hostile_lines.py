"""Agents bound or refuse any input from followers, leaders, ranks and files, and raise no other exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.signer import GOOD
from tests.unit.agent.network.decisions import Close, Deliver
from tests.unit.agent.network.test_follower import Way, assignment
from tests.unit.agent.network.test_leader import Table, stream_of
from tests.unit.hostile_json import JSON, damaged
from trainmaster_operator.agent import http
from trainmaster_operator.agent.connection import JsonLines
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.process import state_folder
from trainmaster_operator.agent.process.state_folder import read_error_file
from trainmaster_operator.agent.progress.sources import parse_progress
from trainmaster_operator.wire.joining import Environment, parse_from_follower
from trainmaster_operator.wire.ranks import parse_rank_states
from trainmaster_operator.wire.values import ProtocolError

REPORT: dict[str, Any] = {"attempt": 3, "worker": 1, "uid": "u", "state": "Failed", "error": "words", "at": 1.5}
RANKS: dict[str, Any] = {"0": {"step": 1, "loss": 0.5, "section": "train", "message": "m", "result": {"a": 1}}}
STATES: dict[str, Any] = {"0": {"step": 1, "silentSeconds": 3.5, "limit": "step", "state": "S", "text": "stack"}}
FROM_FOLLOWER: list[dict[str, Any]] = [
    {"type": "report", "report": REPORT},
    {"type": "progress", "attempt": 3, "worker": 1, "ranks": RANKS, "at": 1.5},
    {"type": "evidence", "attempt": 3, "worker": 1, "ranks": STATES, "at": 1.5, "more": True},
    {"type": "stalled", "attempt": 3},
    {"type": "seen", "attempt": 4},
    {"type": "environment", "attempt": 3, "environment": {"torch": "2.13"}},
]
FROM_LEADER: list[dict[str, Any]] = [
    {"type": "watched", "value": True, "uid": "u"},
    {"type": "assignment", "assignment": GOOD},
    {"type": "ack", "attempt": 3},
    {"type": "stop", "attempt": 3, "graceSeconds": 0.4, "afterSeconds": 0.4, "report": REPORT},
    {"type": "collect", "attempt": 3, "bytes": 4_000},
    {"type": "hung", "attempt": 3, "rank": 1, "message": "words"},
    {"type": "patience", "attempt": 3, "seconds": 4.5},
    {"type": "mismatch", "attempt": 3, "lines": ["words"]},
]
# These lists are nested as deeply as a parser allows, so a writer that nests them further exceeds the limit.
BARELY = '{"a":' + "[" * 900 + "]" * 900 + "}"


def text_of(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (RecursionError, ValueError):
        return BARELY.encode()


@given(damaged(STATES))
def test_evidence_is_bounded(data: Any) -> None:
    try:
        found = parse_rank_states(data)
    except ProtocolError:
        return
    json.dumps([state.to_wire() for state in found.values()], allow_nan=False).encode()


@given(JSON)
def test_an_environment_is_bounded(value: Any) -> None:
    data = value if isinstance(value, dict) else {"a": value, "\ud800": value}
    found = parse_from_follower({"type": "environment", "attempt": 3, "environment": data})
    assert isinstance(found, Environment)
    assert all(len(said.encode()) <= 4 * 256 for said in found.environment.values())


@given(st.lists(st.one_of([damaged(line) for line in FROM_FOLLOWER]), max_size=8))
def test_whatever_a_follower_sends_is_applied_or_passed_over(sent: list[Any]) -> None:
    table = Table()
    table.join(1)
    for line in sent:
        if isinstance(line, dict):
            table.say(10, line)
    assert all(row["worker"] in (0, 1) for row in stream_of(table)[0]["workers"])


@given(st.lists(st.one_of([damaged(line) for line in FROM_LEADER]), max_size=8))
def test_whatever_a_leader_sends_is_delivered_or_passed_over(sent: list[Any]) -> None:
    way = Way(worker=1)
    way.assign(assignment())
    way.answer("job-0")
    for line in sent:
        if isinstance(line, dict):
            for action in way.follower.receive_line(1, line, Now(1.0, 0.0)):
                assert isinstance(action, (Deliver, Close))


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"\n", BARELY.encode() + b"\n", b"[" * 9_000 + b"\n"])))
def test_bytes_of_a_connection_are_lines_or_break_it(chunks: list[bytes]) -> None:
    lines = JsonLines()
    try:
        for chunk in chunks:
            for line in lines.feed(chunk):
                assert isinstance(line, dict)
    except ProtocolError:
        return


@given(st.binary())
def test_a_request_is_read_or_refused(data: bytes) -> None:
    try:
        http.parse_head(data)
    except http.BadRequest:
        return


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary() | damaged({**REPORT, "exited": True}).map(text_of) | damaged({"message": {}}).map(text_of))
def test_files_of_ranks_and_of_earlier_lives_are_read_or_passed_over(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / state_folder.REPORT
    path.write_bytes(data)
    state_folder.read_report(str(tmp_path))
    assert isinstance(read_error_file(str(path)), str)
    parse_progress(data)
