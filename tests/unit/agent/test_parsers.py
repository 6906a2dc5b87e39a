"""Any input from a file or the network is parsed or refused, within bounds, and never ends the agent."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import GOOD
from trainmaster_operator.agent import http
from trainmaster_operator.agent.authority import AssignmentFile
from trainmaster_operator.agent.connection import MAX_BAD_LINES, JsonLines
from trainmaster_operator.agent.progress.sources import parse_progress
from trainmaster_operator.wire.assignment import parse_text
from trainmaster_operator.wire.values import ProtocolError


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
    # Each line costs an exception: a piece of 64 KiB of line breaks kept the agent busy for a tenth of a second.
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
    request = http.Request()
    try:
        for piece in pieces:
            request.feed(piece)
            if request.head() is not None:
                request.body()
    except http.BadRequest as refused:
        assert 400 <= HTTPStatus(refused.status) < 500


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
    request = http.Request()
    request.feed(text.encode("latin-1"))
    with pytest.raises(http.BadRequest) as refused:
        request.head()
    assert refused.value.status == status


def test_what_follows_a_request_is_no_part_of_it() -> None:
    request = http.Request()
    request.feed(b"POST /a?x=1 HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\n\r\n")
    head = request.head()
    assert head is not None and (head.method, head.path, request.body()) == ("POST", "/a", b"hi")
    assert request.rest() == b"GET /b HTTP/1.1\r\n\r\n"


def test_a_request_is_read_however_it_is_cut_and_its_head_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse_head = http.parse_head

    def recorded(data: bytes) -> http.Head:
        parsed.append(data)
        return parse_head(data)

    monkeypatch.setattr(http, "parse_head", recorded)
    text = b"POST /v1/ack HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    for cut in range(1, len(text)):
        request = http.Request()
        request.feed(text[:cut])
        assert request.head() is None
        request.feed(text[cut:])
        for byte in b'{"seq":1}':
            assert request.head() is not None and request.body() is None
            request.feed(bytes([byte]))
        assert request.body() == b'{"seq":1}'
    assert parsed == [text[:-4]] * (len(text) - 1)


def test_who_sends_a_head_byte_by_byte_is_given_up_after_some_pieces() -> None:
    request = http.Request()
    with pytest.raises(http.BadRequest) as refused:
        for byte in b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 1_000:
            request.feed(bytes([byte]))
            request.head()
    assert refused.value.status == 408 and len(request._buffer) == http.MAX_HEAD_PIECES
