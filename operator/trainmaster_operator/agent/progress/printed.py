"""This module matches the ranks' output with the log rules, within a bounded time.

It aborts a match that takes longer than MATCH_SECONDS of CPU time. A timer of the process's CPU time sends a signal,
and Python's matcher checks for signals while it runs (CPython, Modules/_sre). After an abort, no output is matched
until the next attempt, and the ranks' printed progress isn't watched. So a bad pattern costs the agent its view of
progress, but never much time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Optional

from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.limits import MAX_ENVIRONMENT
from trainmaster_operator.wire.log_rules import FRAMEWORKS, NONE

if TYPE_CHECKING:
    from trainmaster_operator.agent.progress.log_rules import LineMatcher

MATCH_SECONDS = 0.1
"""The limit for one chunk of a rank's output, at most 64 KiB. Ordinary patterns need 2 ms for it."""
ENVIRONMENT_MARK = b"environment: "


class TooSlow(Exception):
    """TooSlow aborts a match."""


class Printed:
    """Printed finds the progress in the output of one attempt's ranks. `say` prints a message in the agent's name."""

    def __init__(self, settings: AgentSettings, say: Callable[[str], None]) -> None:
        self._pattern, self._preset = settings.progress_pattern, settings.progress_preset
        self._say = say
        self.rules: dict[int, LineMatcher] = {}
        """Each rank's matcher, with the progress that the rank has printed."""
        self.on_environment: Optional[Callable[[str], None]] = None
        """Called once, with the first line about devices and libraries (trainloop.distributed.diagnostics)."""
        self._matching = False
        self.given_up = False
        self.changed = False
        """Whether there is new progress since the caller last set this to False."""
        self.progressed_at: dict[int, float] = {}
        """When each rank last printed new progress, on the monotonic clock."""
        self.printed_at: dict[int, float] = {}
        """When each rank last printed anything."""
        self.first_step_at: dict[int, float] = {}
        """When each rank was first seen to have finished a step (seconds since the epoch)."""
        signal.signal(signal.SIGVTALRM, self._break_off)

    @property
    def is_asked_for(self) -> bool:
        """Returns whether the job's spec defines the lines of progress. Only then is printed progress watched."""
        return not self.given_up and bool(self._pattern or self._preset in FRAMEWORKS)

    @property
    def is_strict(self) -> bool:
        """Returns whether the job has its own pattern, so that only a matching line is a sign of life."""
        return bool(self._pattern)

    def read(self, rank: int, lines: Sequence[bytes], unfinished: bytes) -> None:
        """Take a rank's new output (`output.Reader`)."""
        now = self.printed_at[rank] = time.monotonic()
        if self.on_environment is not None:
            line = next((line for line in lines if line.startswith(ENVIRONMENT_MARK)), None)
            if line is not None:
                self.on_environment(line[len(ENVIRONMENT_MARK) :].decode("utf-8", "replace")[:MAX_ENVIRONMENT])
                self.on_environment = None
        if self._preset == NONE or self.given_up:
            return
        if rank not in self.rules:
            # Imported here, because its patterns cost 10 ms of an agent's start, and are only needed for output.
            from trainmaster_operator.agent.progress.log_rules import LineMatcher

            self.rules[rank] = LineMatcher(self._pattern, self._preset)
        rules = self.rules[rank]
        try:
            try:
                self._matching = True
                signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_SECONDS)
                found = rules.read(lines, unfinished)
            finally:
                self._matching = False
        except TooSlow:
            self.given_up = True
            remedy = "write a pattern that finds its place at once, without several .* in a row"
            self._say(
                f"spec.progress took longer than {MATCH_SECONDS:g} s to match what rank {rank} printed, and is given "
                f"up for this attempt: {remedy if self._pattern else 'set spec.progress.pattern, or preset: none'}"
            )
            return
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if not found:
            return
        self.changed = True
        self.progressed_at[rank] = now
        if rank not in self.first_step_at and rules.progress is not None and rules.progress.step:
            self.first_step_at[rank] = time.time()

    def _break_off(self, _number: int, _frame: Optional[FrameType]) -> None:
        # The signal may arrive just after the end of the match.
        if self._matching:
            raise TooSlow
