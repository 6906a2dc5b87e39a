"""Reports: what an agent says of its worker, in the stream, in the mark and in the termination message."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, Optional

from trainmaster.agent.errors import EXIT_BY_REASON, EXIT_FINISHED, EXIT_TERMINATED

STATES = ("Waiting", "Starting", "Running", "Finished", "Failed", "Stopped")
ENDED = ("Finished", "Failed", "Stopped")
MAX_ERROR_CHARACTERS = 2_000
MAX_TERMINATION_BYTES = 4_000
"""The kubelet keeps 4,096 bytes of a termination message."""


class Report(NamedTuple):
    """One worker's state in one attempt; `at` is this machine's clock, in seconds since the epoch."""

    attempt: int
    worker: int
    uid: str
    state: str
    node: str = ""
    rank: Optional[int] = None
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    reason: str = ""
    error: str = ""
    at: float = 0.0
    culprit: bool = True

    @property
    def ended(self) -> bool:
        """Whether nothing of the attempt runs on this worker any more."""
        return self.state in ENDED

    def to_wire(self) -> dict[str, Any]:
        """The JSON object of docs/protocol.md."""
        return {
            "attempt": self.attempt,
            "worker": self.worker,
            "uid": self.uid,
            "rank": self.rank,
            "state": self.state,
            "exitCode": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "error": self.error,
            "at": round(self.at, 3),
            "culprit": self.culprit,
            "node": self.node,
        }

    def process_exit_code(self) -> int:
        """The agent's exit code when it reports by exiting."""
        if self.state == "Finished":
            return EXIT_FINISHED
        if self.state == "Stopped":
            return EXIT_TERMINATED
        return EXIT_BY_REASON.get(self.reason) or self.exit_code or 1

    def termination_message(self) -> str:
        """One line of JSON of at most 4,000 bytes; the error's beginning is cut first, its end says what happened."""
        error = self.error
        while True:
            text = json.dumps(self._replace(error=error).to_wire(), separators=(",", ":"))
            if len(text) <= MAX_TERMINATION_BYTES or not error:
                return text[:MAX_TERMINATION_BYTES]
            error = error[max(1, len(error) // 8) :]


def from_wire(data: Any) -> Report | None:
    """Check and bound a report that came over the wire or from a file; None where it isn't one."""
    if not isinstance(data, dict) or data.get("state") not in STATES:
        return None
    attempt, worker = whole(data.get("attempt")), whole(data.get("worker"))
    if attempt is None or worker is None:
        return None
    at = data.get("at")
    return Report(
        attempt=attempt,
        worker=worker,
        uid=text(data.get("uid"), 64),
        state=str(data["state"]),
        node=text(data.get("node"), 253),
        rank=whole(data.get("rank")),
        exit_code=whole(data.get("exitCode")),
        signal=whole(data.get("signal")),
        reason=text(data.get("reason"), 64),
        error=text(data.get("error"), MAX_ERROR_CHARACTERS, from_end=True),
        at=float(at) if isinstance(at, (int, float)) and abs(at) < 1e12 and math.isfinite(at) else 0.0,
        culprit=data.get("culprit") is not False,
    )


def whole(value: Any) -> int | None:
    """A whole number of at least 0 that JSON readers agree on, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        return None
    return value


def text(value: Any, most: int, *, from_end: bool = False) -> str:
    """The beginning (or the end) of a string as valid Unicode; empty for anything else, however deep or long it is."""
    if not isinstance(value, str):
        return ""
    cut = value[-most:] if from_end else value[:most]
    return cut.encode("utf-8", "replace").decode()
