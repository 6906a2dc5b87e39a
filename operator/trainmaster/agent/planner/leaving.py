"""Leaving: when the agent's process ends, and with which code and termination message.

A report that nobody has acknowledged is made the sure way, by exiting: the kubelet brings the code and the message to
the API server. Exits cost a restart of the container and, repeated, a back-off, so they are put off as long as somebody
may still be about to listen; the rules (docs/protocol.md, "The sure way") are in `Leaving.exit_delay`. The other way to
leave is SIGTERM: then the worker stops its ranks and calls `leave_terminated` when they are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Optional

from trainmaster.agent.loop import Loop, Timer
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.reasons import EXIT_TERMINATED
from trainmaster.wire.report import Report

NEW_LEAD_SECONDS = 2.0
"""An operator is taken to be on its way to a lead that is new: without that, the loss of the lead makes each worker
with a report exit before anybody could have followed, into the kubelet's back-off (measured: 10, 20, 40 s)."""
PATIENCE_SECONDS = 3.0
"""How long a report waits for its acknowledgement or a newer assignment before it is made by exiting."""
FORGOTTEN_SECONDS = 30.0
"""Without any operator for this long, one that had acknowledged a report, or had said Hold, may have died."""


class Standing(NamedTuple):
    """What bears on leaving, as the worker sees it at this moment."""

    report: Optional[Report]
    """The last one."""
    assignment: Optional[Assignment]
    lead: Optional[int]
    """Which worker leads; None while that isn't known."""
    followed: bool
    """Whether an operator follows the lead, or may."""
    idle: bool
    """Whether nothing of the attempt runs here any more."""


class Leaving:
    """Ends the loop when it is time to leave. The worker tells it of all that bears on that.

    `standing` gives the moment's state; `save_exited` marks a report as made by exiting, just before it is;
    `complain` takes a sentence for the log.
    """

    def __init__(
        self,
        loop: Loop,
        termination_log: str,
        standing: Callable[[], Standing],
        save_exited: Callable[[Report], None],
        complain: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._termination_log = termination_log
        self._standing = standing
        self._save_exited = save_exited
        self._complain = complain
        self._ended_at = 0.0
        self._exited_before = False
        """Whether the last report has been made by exiting already, by an agent before this one."""
        self._acked_attempt = 0
        self._unfollowed_at: float | None = None
        """Since when no operator follows, on the monotonic clock."""
        self._known_lead: int | None = None
        self._new_lead_until = 0.0
        self._timer: Timer | None = None
        self.terminating = False
        """Whether SIGTERM has come: nothing is started any more, and only `leave_terminated` ends the process."""
        self.code: int | None = None
        """The exit code, once it is decided that the process ends."""

    def ended(self, *, exited_before: bool = False) -> None:
        """This worker's part of an attempt has ended; its report follows."""
        self._ended_at = time.monotonic()
        self._exited_before = exited_before
        self._acked_attempt = 0

    def acknowledged(self, attempt: int) -> None:
        """An operator has taken in the report of this attempt, or of an earlier one."""
        self._acked_attempt = max(self._acked_attempt, attempt)
        self.reconsider()

    def followers_changed(self) -> None:
        """Who leads, or whether an operator follows, has changed."""
        standing = self._standing()
        if standing.lead is not None and standing.lead != self._known_lead:
            self._known_lead = standing.lead
            self._new_lead_until = time.monotonic() + NEW_LEAD_SECONDS
            self._loop.call_later(NEW_LEAD_SECONDS, self.followers_changed)
        if standing.followed:
            self._unfollowed_at = None
        elif self._unfollowed_at is None:
            self._unfollowed_at = time.monotonic()
        self.reconsider()

    def reconsider(self) -> None:
        """Leave now if it is time; otherwise be sure to be asked again when it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        standing = self._standing()
        delay = self.exit_delay(standing)
        if delay is None or standing.report is None or self.terminating:
            return
        remaining = self._ended_at + delay - time.monotonic()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self.reconsider)
        elif standing.idle:
            self._save_exited(standing.report)
            self._leave_with(standing.report)

    def exit_delay(self, standing: Standing) -> float | None:
        """Seconds after its end when the last report has to be made by exiting; None: not at all."""
        report, assignment = standing.report, standing.assignment
        if report is None or report.state not in ("Failed", "Finished") or self._exited_before:
            return None
        if assignment is None or assignment.attempt > report.attempt:
            return None
        if self._acked_attempt >= report.attempt:
            # Whoever says Hold has taken it in.
            if assignment.state == "Hold" or self._unfollowed_at is None:
                return None
            return max(self._unfollowed_at - self._ended_at, 0.0) + FORGOTTEN_SECONDS
        if report.state == "Failed" and (not report.culprit or report.reason == "AgentLost"):
            # The kubelet has already told of a lost agent's container, and the operator is on its way back to this one.
            # Whoever says Hold knows that the attempt is over, and may be waiting for another worker's pod.
            return FORGOTTEN_SECONDS if assignment.state == "Hold" else PATIENCE_SECONDS
        awaited = standing.followed or time.monotonic() < self._new_lead_until
        return PATIENCE_SECONDS if awaited else 0.0

    def leave_terminated(self) -> None:
        """SIGTERM has been obeyed: leave with the last report, where the attempt has ended."""
        report = self._standing().report
        if report is None or not report.ended:
            self._leave(EXIT_TERMINATED)
        else:
            self._leave_with(report)

    def _leave_with(self, report: Report) -> None:
        try:
            with open(self._termination_log, "w", encoding="utf-8") as file:
                file.write(report.termination_message())
        except OSError as error:
            self._complain(f"cannot write the termination message: {error.strerror}")
        self._leave(report.process_exit_code())

    def _leave(self, code: int) -> None:
        if self.code is None:
            self.code = code
            # One more round, so that the report gets onto the wire first.
            self._loop.call_later(0.01, self._loop.stop)
