"""Repeats requests while the API server doesn't answer, for views and waits that last longer than an outage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack

from trainmaster.client.errors import ClientError, NoCluster
from trainmaster.client.operator_sign import clock
from trainmaster.client.transport import RequestOptions, Transport

T = TypeVar("T")
# Seconds before the first repetition, and the maximum. The time doubles with each repetition.
FIRST_SECONDS, MOST_SECONDS = 0.5, 8.0
# Time after which a request that has no answer yet counts as an outage.
SLOW_SECONDS = 10.0


@dataclass
class Outage:
    """Outage is the time since which the API server hasn't answered. `on_change` is called when it begins and ends."""

    on_change: Callable[[str], None] = lambda _: None
    since: datetime | None = None
    error: NoCluster | None = None
    # When the requests that have no answer yet were sent.
    waiting: dict[object, datetime] = field(default_factory=dict)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Counts a request as unanswered during the block."""
        request = object()
        self.waiting[request] = datetime.now(UTC)
        try:
            yield
        finally:
            del self.waiting[request]

    def begins(self, error: NoCluster) -> None:
        """Records a request without an answer."""
        self.error = error
        if self.since is None:
            self.since = datetime.now(UTC)
            self.on_change(f"{error} Trying again.")

    def ends(self) -> None:
        """Records an answer."""
        since, self.since = self.since, None
        if since is not None:
            self.on_change(f"The cluster answers again after {(datetime.now(UTC) - since).total_seconds():.0f} s.")

    def sentence(self, now: datetime) -> str:
        """Returns the message for a view, or an empty text if the API server answers."""
        # Another thread may change these.
        waiting = [asked for asked in list(self.waiting.values()) if now - asked > timedelta(seconds=SLOW_SECONDS)]
        since = self.since or min(waiting, default=None)
        if since is None:
            return ""
        why = f" {self.error}" if self.since is not None else ""
        return f"The API server hasn't answered since {clock(since, now)}: what is shown is as of then.{why}"


@dataclass
class PatientTransport:
    """PatientTransport repeats reads that got no answer, once the API server has answered for the first time."""

    transport: Transport
    outage: Outage
    # Until when (time.monotonic) reads are repeated.
    until: float = math.inf
    _has_answered: bool = field(default=False)

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        """Sends a request, and repeats it if it only reads. Raises a ClientError."""
        if method != "GET":
            return self.transport.request(method, path, **options)
        return self._repeated(lambda: self.transport.request(method, path, **options))

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer. A stream that breaks off isn't repeated, because its reader knows."""

        def first() -> tuple[Iterator[bytes], list[bytes]]:
            lines = self.transport.lines(path, query=query, read_seconds=read_seconds)
            return lines, [line for line in [next(lines, None)] if line is not None]

        lines, begun = self._repeated(first, is_stream=True, of_a_pod=path.endswith("/log"))
        yield from begun
        yield from lines

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the beginning of an answer. It comes from a pod, so it isn't repeated."""
        return self.transport.beginning(path, limit=limit, seconds=seconds)

    def _repeated(self, send: Callable[[], T], *, is_stream: bool = False, of_a_pod: bool = False) -> T:
        wait = FIRST_SECONDS
        while True:
            try:
                # A stream's first line may take any time.
                with nullcontext() if is_stream else self.outage.asking():
                    found = send()
            except NoCluster as error:
                is_over = not self._has_answered or time.monotonic() + wait >= self.until
                if is_over or (of_a_pod and self._answers()):
                    raise
                self.outage.begins(error)
                time.sleep(wait)
                wait = min(2 * wait, MOST_SECONDS)
                continue
            self._has_answered = True
            self.outage.ends()
            return found

    def _answers(self) -> bool:
        """Returns whether the API server itself answers. If so, a pod's node didn't."""
        try:
            self.transport.request("GET", "/api")
        except ClientError as error:
            return not isinstance(error, NoCluster)
        return True
