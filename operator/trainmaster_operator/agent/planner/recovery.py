"""The way from a fault to the next attempt's first step is timed, as far as this worker goes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

from trainmaster_operator.wire.stream import ProgressLine, Recovery


class Way(NamedTuple):
    """A way has the moments of one recovery, in seconds since the epoch: the ranks write theirs by that clock."""

    attempt: int
    """The attempt that ended."""
    fault_at: float
    detected_at: float
    assigned_at: Optional[float] = None
    stopped_at: Optional[float] = None
    launched_at: Optional[float] = None

    def assigned(self, attempt: int, at: float) -> Way:
        """Returns the way once an attempt is assigned."""
        return self._replace(assigned_at=at) if attempt > self.attempt and self.assigned_at is None else self

    def stopped(self, attempt: int, at: float) -> Way:
        """Returns the way with nothing left of an attempt."""
        return self._replace(stopped_at=at) if attempt == self.attempt else self

    def launched(self, attempt: int, at: float) -> Way:
        """Returns the way with an attempt's ranks started."""
        return self._replace(launched_at=at) if attempt > self.attempt and self.launched_at is None else self


def begin(known: Optional[Way], attempt: int, detected_at: float, silent: float = 0.0) -> Way:
    """Returns the way that begins with an attempt's end; its first sign counts. `silent`: a hang's."""
    return known if known is not None and known.attempt == attempt else Way(attempt, detected_at - silent, detected_at)


def measured(way: Optional[Way], line: ProgressLine, first_step_at: Optional[float]) -> Optional[Recovery]:
    """Returns how far the way to an attempt is behind its ranks; None where no fault led to it."""
    if way is None or line.attempt != way.attempt + 1:
        return None
    ranks = line.ranks.values()
    moments = (
        way.detected_at,
        way.assigned_at,
        way.stopped_at,
        way.launched_at,
        _last(rank.joined_at for rank in ranks),
        _last(rank.restored_at for rank in ranks),
        first_step_at,
    )
    # A clock that was set back meanwhile must not make a time before the fault of it.
    return Recovery(*(None if at is None else max(0.0, at - way.fault_at) for at in moments))


def _last(moments: Iterable[Optional[float]]) -> Optional[float]:
    """Returns the latest; None where one isn't known."""
    known = list(moments)
    return None if not known or None in known else max(at for at in known if at is not None)
