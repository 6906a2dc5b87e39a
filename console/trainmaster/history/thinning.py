"""Figures become fewer as they age, by levels as in RRDtool and Whisper: each time stands in one level alone.

Samples come into level 0 as they are. What is too much for a level are its oldest points; they are combined by the
next level's seconds and go there. So a job of an hour has its samples, one of months has every sample of the last hour,
a point every 10 seconds of the hours before, and so on, in a bounded number of points.

What a point of several says depends on the figure: the mean of what swings, the largest of what is looked for as a
peak, the last of what is counted up. No point is of two attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trainmaster.history.packing import NAN

# Seconds of a point, by level. The last level's 1,800 points are seven years.
LEVEL_SECONDS = (0.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28_800.0, 115_200.0)
# Points that a level keeps when its oldest go to the next one, and in a block, about.
KEPT_POINTS, BLOCK_POINTS = 1800, 60

Combine = Callable[[Sequence[float]], float]


def mean(values: Sequence[float]) -> float:
    """Returns the mean of figures; NaN where one is unknown."""
    return sum(values) / len(values)


def last(values: Sequence[float]) -> float:
    """Returns the last figure."""
    return values[-1]


def combined(how: Combine, values: Sequence[float]) -> float:
    """Returns one figure for several, those left out that are unknown."""
    found = how(values)
    # max() passes over what is unknown but where it comes first.
    if found == found:
        return found
    known = [value for value in values if value == value]
    return how(known) if known else NAN


def spans(at: Sequence[float], attempt: Sequence[int], seconds: float) -> list[tuple[int, int]]:
    """Returns which points become one: the first and the one behind the last of each span of time."""
    return list(_spans(at, attempt, seconds))


def _spans(at: Sequence[float], attempt: Sequence[int], seconds: float) -> Iterator[tuple[int, int]]:
    first, key = 0, None
    for place, (time, of) in enumerate(zip(at, attempt, strict=True)):
        now = (time // seconds, of) if seconds else (time, of)
        if now != key:
            if place:
                yield first, place
            first, key = place, now
    if at:
        yield first, len(at)
