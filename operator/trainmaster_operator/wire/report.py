"""A report describes a worker's state in an attempt. It is streamed, saved, and written as the termination message.

The kubelet shows the reason for a worker's end and the agent's exit code. The job's rules match both.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, Optional, get_args

from trainmaster_operator.wire import limits, values
from trainmaster_operator.wire.values import ProtocolError

WorkerState = Literal["Waiting", "Starting", "Running", "Finished", "Failed", "Stopped"]
STATES: tuple[WorkerState, ...] = get_args(WorkerState)
ENDED: tuple[WorkerState, ...] = ("Finished", "Failed", "Stopped")
"""The states in which the attempt has ended on the worker."""


FAILURE_REASONS = frozenset(
    {
        *("Error", "Signal", "OOMKilled", "Hung", "PreflightMismatch", "MasterUnreachable"),
        *("LaunchError", "Usage", "AgentLost", "Diverged"),
    }
)
"""The reasons that an agent may report for a failure."""

EXIT_FINISHED = 0
EXIT_USAGE = 64
EXIT_DIVERGED = 70
"""The exit code of a script that reports divergence by an exception named Diverged."""
EXIT_KILLED = 137
"""128 + SIGKILL."""
EXIT_TERMINATED = 143
"""128 + SIGTERM: the agent has stopped as requested."""
EXIT_BY_REASON = {"LaunchError": 65, "MasterUnreachable": 66, "PreflightMismatch": 67, "Hung": 68, "AgentLost": 69}
"""The agent's exit codes for failures that it finds itself. After any other failure it exits with the child's code."""
REASON_BY_EXIT_CODE = {
    EXIT_USAGE: "Usage",
    EXIT_TERMINATED: "Stopped",
    **{code: reason for reason, code in EXIT_BY_REASON.items()},
}
"""The reasons that are used if a termination message was lost."""


class Report(NamedTuple):
    """Report is a worker's state in one attempt. `at` is in seconds since the epoch, by the worker's clock."""

    attempt: int
    worker: int
    uid: str
    state: WorkerState
    node: str = ""
    rank: Optional[int] = None
    """The global rank that failed first on this worker, if known."""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    reason: str = ""
    """Why the worker failed. If the state is `Starting` or `Running`: why a rank failed before it joined the others."""
    error: str = ""
    at: float = 0.0
    culprit: bool = True
    """False if the ranks only failed because of another rank's end."""
    environment: str = ""
    """The ranks' GPUs, driver and libraries, as far as they are known."""
    able: bool = False
    """Whether all ranks of this worker that are in the group can continue in another attempt. Once one of them has
    failed: whether all other ranks can."""
    ready: bool = False
    """Whether there are ranks of this worker that are absent from the group, and all of them are waiting to join."""

    alone: bool = False
    """Whether the ranks of this worker have trained, or have finished, without a process group of several ranks."""
    finished: tuple[int, ...] = ()
    """Ranks of this worker that had exited with 0 before another one failed."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @classmethod
    def parse(cls, data: object) -> Report:
        if not isinstance(data, dict):
            raise ProtocolError(f"report: {values.shown(data)} is not an object")
        state = data.get("state")
        if not isinstance(state, str) or state not in STATES:
            raise ProtocolError(f"report.state: {values.shown(state)} is none of {', '.join(STATES)}")
        return cls(
            attempt=values.whole_in(data, "attempt"),
            worker=values.whole_in(data, "worker", limits.MAX_INDEX),
            uid=values.text(data.get("uid"), limits.MAX_UID),
            state=state,
            node=values.text(data.get("node"), limits.MAX_NODE),
            rank=values.optional_whole(data, "rank"),
            exit_code=values.optional_whole(data, "exitCode"),
            signal=values.optional_whole(data, "signal"),
            reason=values.text(data.get("reason"), limits.MAX_REASON),
            error=values.last_lines(values.text(data.get("error"), None), limits.MAX_ERROR_CHARACTERS),
            at=values.time_in(data, "at"),
            culprit=data.get("culprit") is not False,
            environment=values.text(data.get("environment"), limits.MAX_ENVIRONMENT),
            able=data.get("able") is True,
            ready=data.get("ready") is True,
            alone=data.get("alone") is True,
            finished=_ranks_of(data.get("finished")),
        )

    @classmethod
    def read(cls, data: object) -> Report | None:
        """Returns the parsed report, or None if it isn't one."""
        try:
            return cls.parse(data)
        except ProtocolError:
            return None

    def to_wire(self) -> dict[str, Any]:
        return {**values.fields_of(self, "environment", "able", "ready", "alone", "finished"), "at": round(self.at, 3)}

    def process_exit_code(self) -> int:
        """Returns the agent's exit code when it reports by exiting."""
        if self.state == "Finished":
            return EXIT_FINISHED
        if self.state == "Stopped":
            return EXIT_TERMINATED
        return EXIT_BY_REASON.get(self.reason) or self.exit_code or 1

    def termination_message(self) -> str:
        """Returns one line of JSON, at most 4,000 bytes.

        If the error's text is too long, its beginning is cut off, because the last lines name the cause.
        """
        error = self.error
        while True:
            line = json.dumps(self._replace(error=error).to_wire(), separators=(",", ":"))
            if len(line) <= limits.MAX_TERMINATION_BYTES or not error:
                return line[: limits.MAX_TERMINATION_BYTES]
            error = values.last_lines(error, len(error) - max(1, len(error) // 8))


def _ranks_of(value: object) -> tuple[int, ...]:
    given = value[: limits.MAX_FINISHED_RANKS] if isinstance(value, list) else []
    ranks = (values.whole(each, limits.MAX_INDEX) for each in given)
    return tuple(rank for rank in ranks if rank is not None)


def merge(known: Report | None, report: Report) -> Report:
    """Returns which of two reports counts for a worker's attempt, the known one or one that has just arrived.

    An end wins over any earlier state. A report of how the ranks ended wins over a report that the agent was lost,
    whichever arrives first. The second kind comes from an agent that restarted without a saved end, or from a leader
    whose follower is silent. Otherwise the later end wins, because agents correct themselves: they often see the broken
    connection of a rank that isn't at fault before the exit of the rank at fault. Another pod's report replaces the
    earlier pod's, but a finished worker stays finished.
    """
    if known is None or not known.ended:
        return report
    if known.uid != report.uid:
        return known if known.state == "Finished" else report
    if not report.ended:
        return known
    known_lost, lost = known.reason == "AgentLost", report.reason == "AgentLost"
    if known_lost != lost and "Stopped" not in (known.state, report.state):
        return report if known_lost else known
    return report if report.at >= known.at else known
