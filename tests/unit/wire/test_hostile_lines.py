"""`wire.lines` and `wire.stream` turn any bytes into lines, or refuse them with the reason."""

from __future__ import annotations

import re

import pytest

from trainmaster_operator.wire.stream import LineBuffer, parse_line
from trainmaster_operator.wire.values import ProtocolError


def test_lines_are_cut_where_they_end_however_the_bytes_come() -> None:
    buffer = LineBuffer()
    text = b'{"type":"ping"}\n{"type":"ping"}\n'
    lines = [line for byte in text for line in buffer.feed(bytes([byte]))]
    assert lines == [b'{"type":"ping"}'] * 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"[" * 20_000, "not JSON: b'[["),
        (
            b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":%s}' % (b"[" * 900 + b"]" * 900),
            "hello.workers: ",
        ),
        (b'{"type":"worker","worker":%s}' % (b'{"a":' * 980 + b"0" + b"}" * 980), ""),
        (
            b'{"type":"worker","worker":%s,"uid":"u","seen":1}' % (b"9" * 4_000),
            "worker: a number of more than 20 digits",
        ),
        (b'{"type":"ping","at":%s}' % (b"9" * 60_000), "not JSON: "),
        (b'{"type":["ping"]}', "type: a list of 1 items is not a text"),
        (b"{}", "type: null is not a text"),
        (b"\xff\xfe\x00", "not JSON: "),
        (b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":7}', "hello.workers: 7 is not a list"),
        (
            b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":[%s0]}' % (b"0," * 10_000),
            "hello.workers: a list of 10001 items is not a list of at most 1024 workers",
        ),
        (b'{"type":"progress","attempt":1,"worker":0,"ranks":{"-1":{}}}', "progress.ranks: '-1' is not a rank"),
        (
            b'{"type":"progress","attempt":1,"worker":0,"ranks":{"0":{"loss":"NaN"}}}',
            "loss: 'NaN' is not a finite number",
        ),
        (
            b'{"type":"progress","attempt":1,"worker":0,"ranks":{"0":{"loss":1e999}}}',
            "loss: inf is not a finite number",
        ),
        (b'{"type":"evidence","attempt":1,"worker":0,"ranks":"all"}', "evidence.ranks: 'all' is not an object"),
        (b'{"type":"evidence","attempt":1,"worker":0,"ranks":{"3":7}}', "evidence.ranks: 7 is not an object"),
        (b'{"type":"worker","worker":true,"uid":"u","seen":1}', "worker: True is not a whole number"),
        (
            b'{"type":"report","seq":1,"report":{"attempt":1,"worker":0,"state":"Winning"}}',
            "report.state: 'Winning' is none of",
        ),
    ],
)
def test_hostile_lines_are_refused_with_what_is_wrong_in_them(line: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{re.escape(sentence)}"):
        parse_line(line)
