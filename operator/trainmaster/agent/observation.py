"""One attempt's ranks as they are seen from outside: whether they are up, how far they are, whether they hang."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from trainmaster.agent import hang
from trainmaster.agent.errors import EXIT_BY_REASON
from trainmaster.agent.launcher import attempt_dir
from trainmaster.agent.loop import Loop
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.report import MAX_ERROR_CHARACTERS
from trainmaster.agent.run import Run
from trainmaster.agent.settings import Settings
from trainmaster.agent.stacks import ask_for_stacks
from trainmaster.agent.verdict import Outcome

LINE_SECONDS = 1.0
"""Progress lines come at most so often."""
UP_SECONDS = 1.0
"""Ranks that live so long count as up, also where they write no progress."""


class Observation:
    """Calls `on_up` once, when all ranks are up, and `send` with each progress line."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        run: Run,
        on_up: Callable[[], None],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._run = run
        self._on_up = on_up
        self._send = send
        first = run.first_rank()
        path = os.path.join(attempt_dir(settings, run.attempt), "progress")
        self._heartbeats = Heartbeats(path, range(first, first + settings.processes))
        self._up = False
        self._sent_at = 0.0
        self._unsent = False
        self._stalled = False

    @property
    def ranks(self) -> dict[str, dict[str, Any]]:
        """The newest progress of each rank."""
        return self._heartbeats.ranks

    def look(self) -> None:
        """Look again; to be called a few times a second while the ranks run."""
        run, now = self._run, time.monotonic()
        self._unsent = self._heartbeats.poll() or self._unsent
        if not self._up and run.up and (self.ranks or now - run.started_at > UP_SECONDS):
            self._up = True
            self._on_up()
        if self._unsent and now - self._sent_at >= LINE_SECONDS:
            self._send_line()
        if not self._stalled and not run.stopping:
            stall = hang.find_stall(self._settings, self._heartbeats, run.started_at, now)
            if stall is not None:
                self._stalled = True
                self._collect_stacks(stall)

    def finish(self) -> None:
        """The ranks are gone: pass on what they wrote last."""
        if self._heartbeats.poll() or self._unsent:
            self._send_line()

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

    def _collect_stacks(self, stall: hang.Stall) -> None:
        pids = self._run.ranks.values()
        for pid in pids:
            ask_for_stacks(pid)
        # Ranks that wait for the one that hangs are over the limit too. Where a rank was stopped from outside, this is
        # the worker to blame, and its report goes first: the others are then told to stop.
        stopped_here = any(hang.is_stopped(pid) for pid in pids)
        self._loop.call_later(0 if stopped_here else hang.STACKS_SECONDS, lambda: self._report_hung(stall))

    def _report_hung(self, stall: hang.Stall) -> None:
        run = self._run
        if run.stopping or run.outcome is not None:
            return
        local_rank = stall.rank - run.first_rank()
        views = "\n".join(hang.look_at(pid) for pid in run.ranks.values())
        parts = [run.evidence(local_rank)[-1_000:], views[:600], stall.sentence]
        if hang.is_stopped(run.ranks.get(local_rank, 0)):
            parts.append(f"rank {stall.rank} is stopped by a signal (state T)")
        error = "\n".join(filter(None, parts))[-MAX_ERROR_CHARACTERS:]
        run.fail(Outcome("Failed", stall.rank, EXIT_BY_REASON["Hung"], None, "Hung", error))
