"""One attempt's ranks as they are seen from outside: whether they are up, how far they are, whether they hang."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from trainmaster.agent.hang import rank_states
from trainmaster.agent.loop import Loop
from trainmaster.agent.process.launcher import attempt_dir
from trainmaster.agent.process.run import RunProcesses
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.settings import Settings

LINE_SECONDS = 1.0
"""Progress lines come at most so often."""
LOOK_SECONDS = 0.25
"""The ranks are looked at so often."""
FIRST_LOOKS_SECONDS = 0.05
"""And so often until they are up: the restart is told, and its time booked, to that."""
UP_SECONDS = 1.0
"""Ranks that live so long count as up, also where they write no progress."""


class Observation:
    """Calls `on_up` once when all ranks are up, `send` with each progress line, `on_stall` at a rank over its limit."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        run: RunProcesses,
        on_up: Callable[[], None],
        send: Callable[[dict[str, Any]], None],
        on_stall: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._run = run
        self._on_up = on_up
        self._send = send
        self._on_stall = on_stall
        self._first = first = run.first_rank()
        path = os.path.join(attempt_dir(settings, run.attempt), "progress")
        self._heartbeats = Heartbeats(path, range(first, first + settings.processes))
        self._up = False
        self._sent_at = 0.0
        self._unsent = False
        self._stalled = False
        self._quiet_until = 0.0
        loop.call_later(FIRST_LOOKS_SECONDS, self._look_again)

    @property
    def ranks(self) -> dict[str, dict[str, Any]]:
        """The newest progress of each rank."""
        return self._heartbeats.ranks

    def _look_again(self) -> None:
        if not self._run.ended:
            self._look()
            self._loop.call_later(LOOK_SECONDS if self._up else FIRST_LOOKS_SECONDS, self._look_again)

    def _look(self) -> None:
        run, now = self._run, time.monotonic()
        self._unsent = self._heartbeats.poll() or self._unsent
        if not self._up and run.up and (self.ranks or now - run.started_at > UP_SECONDS):
            self._up = True
            self._on_up()
        if self._unsent and now - self._sent_at >= LINE_SECONDS:
            self._send_line()
        quiet = self._stalled or run.stopping or now < self._quiet_until
        if not quiet and any(rank_states.is_over(standing) for standing in self.standings()):
            self._stalled = True
            self._on_stall()

    def finish(self) -> dict[str, Any] | None:
        """A line of what the ranks wrote last; None where that was sent already."""
        if not self._heartbeats.poll() and not self._unsent:
            return None
        self._unsent = False
        return self.line()

    def line(self) -> dict[str, Any]:
        """The progress line of docs/protocol.md."""
        return {
            "type": "progress",
            "attempt": self._run.attempt,
            "worker": self._settings.worker,
            "ranks": self.ranks,
            "at": round(time.time(), 3),
        }

    def _send_line(self) -> None:
        self._unsent = False
        self._sent_at = time.monotonic()
        self._send(self.line())

    def standings(self) -> list[rank_states.Standing]:
        """How this worker's ranks stand now, by their progress files."""
        ranks = range(self._first, self._first + self._settings.processes)
        return rank_states.standings(self._settings, self._heartbeats, ranks, self._run.started_at, time.monotonic())

    def be_patient(self, seconds: float) -> None:
        """Somebody is at something long: don't ask again before its time is over."""
        self._quiet_until = time.monotonic() + seconds
        self._stalled = False
