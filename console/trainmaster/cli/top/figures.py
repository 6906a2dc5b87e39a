"""What the ranks of a job say of themselves says something of them together: who is slow, and how they are spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trainmaster.client import RankMetrics

# A rank is slow when its steps take so much longer than the median's.
SLOW_FACTOR = 1.2
BINS = 8
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Spread:
    """Spread says how the times of a job's ranks lie by which they are compared (`own_seconds`), the slowest first."""

    ranks: tuple[RankMetrics, ...] = ()
    median: float = 0.0
    histogram: tuple[tuple[float, float, int], ...] = ()
    """(from, to, ranks) of each bin, in seconds."""

    @property
    def title(self) -> str:
        """Returns what the times are of."""
        return "step time" if all(each.compute_seconds is None for each in self.ranks) else "computing time"

    @property
    def slowest(self) -> RankMetrics | None:
        """Returns the rank whose steps take longest, where they take notably longer than the median's."""
        first = self.ranks[0] if self.ranks else None
        return first if first is not None and seconds_of(first) > SLOW_FACTOR * self.median else None


def spread_of(figures: Iterable[RankMetrics]) -> Spread:
    """Returns how the times of the ranks that report one lie."""
    ranks = sorted((each for each in figures if each.own_seconds), key=lambda each: (-seconds_of(each), each.rank))
    if not ranks:
        return Spread()
    times = [seconds_of(each) for each in ranks]
    return Spread(tuple(ranks), median(times), tuple(histogram(times)))


def histogram(values: Sequence[float], bins: int = BINS) -> list[tuple[float, float, int]]:
    """Returns how many values lie in each of some equal ranges between the least and the most of them."""
    least, most = min(values), max(values)
    if least == most:
        return [(least, most, len(values))]
    width = (most - least) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - least) / width))] += 1
    return [(least + at * width, least + (at + 1) * width, counted) for at, counted in enumerate(counts)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns the newest values as a line of blocks, from the least of them to the most."""
    shown = list(values)[-width:]
    if len(shown) < 2:
        return ""
    least, most = min(shown), max(shown)
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round(steps * (value - least) / (most - least)) if most > least else 0] for value in shown)


def step_time(seconds: float) -> str:
    """Returns the time of a step as people say it: 83.4 ms, 1.25 s."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def seconds_of(figures: RankMetrics) -> float:
    """Returns the time by which a rank is compared with the others."""
    return figures.own_seconds or 0.0
