"""Cuts a connection's bytes into lines."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.limits import MAX_LINE_BYTES


class LineBuffer:
    """LineBuffer cuts a connection's bytes into lines, none of them longer than `longest` bytes."""

    def __init__(self, longest: int = MAX_LINE_BYTES) -> None:
        self._longest = longest
        self._rest = bytearray()
        # So many bytes of the rest hold no line's end: a line that comes byte by byte is searched once.
        self._searched = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Returns the lines that are complete now. Raises ProtocolError when one is too long, or doesn't end."""
        self._rest += chunk
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._searched = 0
            if len(line) > self._longest:
                raise ProtocolError(f"a line of {len(line)} bytes is longer than {self._longest}")
            yield line
        self._searched = len(self._rest)
        if len(self._rest) > self._longest:
            raise ProtocolError(f"a line is longer than {self._longest} bytes")
