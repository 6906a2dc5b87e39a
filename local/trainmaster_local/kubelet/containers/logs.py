"""Reads a container's output as `kubectl logs` requests it (`pkg/kubelet/kuberuntime/logs`).

Log files are in CRI format: time, stream, F (a complete line) or P (a part of a line), text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster_local.ages import seconds_since_epoch

_CHUNK = 256 * 1024
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LogOptions:
    """The options of a log request. `since` is in seconds since the epoch; without a `tail` everything is read."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit_bytes: int | None = None
    stream: str = ""

    @staticmethod
    def from_query(query: Mapping[str, str], now: float) -> LogOptions:
        """Returns the options in a query. Raises ValueError naming the parameter."""

        def number(name: str, least: int) -> int | None:
            text = query.get(name)
            if text is None:
                return None
            if not text.lstrip("-").isdigit() or int(text) < least:
                raise ValueError(f"{name}: Invalid value: {text}: must be greater than or equal to {least}")
            return int(text)

        since_seconds = number("sinceSeconds", 1)
        since = now - since_seconds if since_seconds is not None else None
        if query.get("sinceTime"):
            since = seconds_since_epoch(query["sinceTime"])
        stream = query.get("stream", "All")
        return LogOptions(
            follow=query.get("follow", "").lower() in ("true", "1"),
            timestamps=query.get("timestamps", "").lower() in ("true", "1"),
            tail=number("tailLines", 0),
            since=since,
            limit_bytes=number("limitBytes", 1),
            stream={"Stdout": "stdout", "Stderr": "stderr"}.get(stream, ""),
        )


def _start_of_tail(path: Path, lines: int) -> int:
    """Returns the offset of the last `lines` lines, found from the end. Parts count as lines, as in the kubelet."""
    with path.open("rb") as file:
        position = file.seek(0, 2)
        if lines == 0:
            return position
        needed = lines + 1
        while position > 0:
            step = min(_CHUNK, position)
            position = file.seek(position - step)
            block = file.read(step)
            count = block.count(b"\n")
            if count >= needed:
                index = len(block)
                for _ in range(needed):
                    index = block.rfind(b"\n", 0, index)
                return position + index + 1
            needed -= count
        return 0


def render(line: bytes, options: LogOptions, *, goes_on: bool = False) -> bytes:
    """Returns one log line as requested, or nothing. If a line has parts, only the first gets a timestamp."""
    stamp, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if options.stream and stream.decode() != options.stream:
        return b""
    if options.since is not None and seconds_since_epoch(_microseconds(stamp.decode())) < options.since:
        return b""
    text = text if tag == b"P" else text + b"\n"
    return stamp + b" " + text if options.timestamps and not goes_on else text


def _microseconds(stamp: str) -> str:
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction[:6] or '0'}+00:00"


async def read_logs(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yields the log's text in pieces. With `follow` it continues while `running()`, across rotated files."""
    left = options.limit_bytes
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        return
    try:
        if options.tail is not None:
            # Its folder may be deleted with the pod; the open file stays readable.
            with contextlib.suppress(FileNotFoundError):
                file.seek(await asyncio.to_thread(_start_of_tail, path, options.tail))
        rest = b""
        goes_on = False
        while True:
            # This is checked before the read, so that output from before the end is still read.
            alive = options.follow and running()
            data = await asyncio.to_thread(file.read, _CHUNK)
            if data:
                *lines, rest = (rest + data).split(b"\n")
                pieces = []
                for line in lines:
                    pieces.append(render(line, options, goes_on=goes_on))
                    goes_on = not pieces[-1].endswith(b"\n") if pieces[-1] else goes_on
                out = b"".join(pieces)
                if left is not None:
                    out = out[:left]
                    left -= len(out)
                if out:
                    yield out
                if left == 0:
                    return
                continue
            if not alive:
                return
            if _rotated(path, file.fileno()):
                file.close()
                file = await asyncio.to_thread(path.open, "rb")
                continue
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        file.close()


def _rotated(path: Path, descriptor: int) -> bool:
    """Returns whether the log's name now belongs to another file."""
    return path.exists() and path.stat().st_ino != os.fstat(descriptor).st_ino


def last_lines(path: Path, lines: int = 80, size: int = 2048) -> str:
    """Returns the end of a log without its timestamps, the termination message of FallbackToLogsOnError."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(_start_of_tail(path, lines))
        text = b"".join(render(line, LogOptions()) for line in file.read().splitlines())
    return text[-size:].decode(errors="replace")
