"""Reads the data of charts: curves and heat in a window of time, with a limited number of points."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, repeat
from operator import add
from statistics import median
from typing import Any

from trainmaster.client.history.answers import (
    MOST_CURVE_LINES,
    MOST_RANKS,
    MetricCurves,
    RankHeat,
    Series,
)
from trainmaster.history.figures import (
    CURVES,
    GPUS,
    HEAT,
    LEVEL_SECONDS,
    MAX_RANKS,
    NAN,
    OWN,
    RULES,
    SPENT,
    STATISTICS,
    STEP,
    SYSTEM,
    Points,
    joined,
    readable,
    spans,
    times_of_block,
)
from trainmaster.history.names import BUILT_IN, LIMITS, SYSTEM_NAMES, unit_of
from trainmaster_operator.wire.limits import MAX_GPUS

# Number of the slowest and of the fastest ranks that are shown if there are too many ranks.
_ENDS = 256
# Widths of a point in seconds. The first one that gives few enough points is used.
_NICE_SECONDS = (2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 57_600, 86_400)
# Maximum number of ranks beyond MAX_RANKS to count. It is limited because a job's pods choose the ranks' numbers.
_MOST_COUNTED = 100_000


class Moved(Exception):
    """A block was replaced before it was read. The read must start again."""


@dataclass(frozen=True)
class TimeWindow:
    """TimeWindow is the range of time that a chart shows, in seconds since the epoch."""

    since: float = 0.0
    until: float = math.inf


@dataclass(frozen=True)
class Block:
    """Block identifies a block of figures in the file."""

    id: int
    level: int


@dataclass(frozen=True)
class Drawn:
    """Drawn is a job's data of one kind in a window of time: blocks, which `data` reads one by one, then the tail."""

    kind: str
    tail: Sequence[Points]
    blocks: Sequence[Block] = ()
    # Returns a block's data. Raises Moved, or an error if the answer takes too long.
    data: Callable[[Block], bytes] = lambda _: b""

    def read(self, block: Block, figure: str | None = None) -> Points:
        """Returns a block's points, with all figures or one. Raises Moved."""
        return Points.of_block(self.kind, self.data(block), figure)

    def resolution(self, seconds: float) -> float:
        """Returns a drawn point's width in seconds: `seconds`, or the coarsest level's width if that is larger."""
        return max(seconds, LEVEL_SECONDS[max((block.level for block in self.blocks), default=0)])


def series_answer(
    drawn: Drawn, window: TimeWindow, points: int, done_before: Mapping[int, int], metrics: Sequence[str] = ()
) -> Series:
    """Returns the curves, and those of the ranks' own `metrics`. Raises Moved.

    `done_before` maps an attempt to the furthest step of earlier attempts.
    """
    found = joined(CURVES, chain(readable(drawn.read, drawn.blocks), drawn.tail)).between(window.since, window.until)
    together, seconds = _together(found.at, found.attempt, points)
    # If a job has more attempts than points, its newest attempts are shown.
    first = together[0][0] if together else len(found)
    thin = found.part(first, len(found)).combined([(begin - first, end - first) for begin, end in together])
    unknown = array("d", [NAN]) * len(thin)
    figures = {name: _rounded(thin.values.get(name, unknown), 7) for name in RULES[CURVES] if name != STEP}
    steps = [int(step) if step == step else None for step in thin.values.get(STEP, unknown)]
    return Series.of(
        resolutionSeconds=drawn.resolution(seconds),
        at=thin.at,
        attempt=thin.attempt,
        step=steps,
        redone=[
            step is not None and step <= done_before.get(attempt, -1)
            for step, attempt in zip(steps, thin.attempt, strict=True)
        ],
        **{name: values for name, values in figures.items() if not name.startswith(SPENT)},
        timeSpent={name.removeprefix(SPENT): values for name, values in figures.items() if name.startswith(SPENT)},
        metrics={name: _rounded(thin.values[f"{OWN}{name}"], 7) for name in metrics if f"{OWN}{name}" in thin.values},
    )


def curves_answer(
    names: Sequence[str],
    drawn: Mapping[str, Drawn],
    window: TimeWindow,
    points: int,
    done_before: Mapping[int, int],
) -> MetricCurves:
    """Returns the curves of these names that have values. `drawn` contains the job's data by kind. Raises Moved."""
    training = [name for name in names if name not in SYSTEM_NAMES]
    found: dict[str, dict[str, Any]] = {}
    if training:
        own = [name for name in training if name not in BUILT_IN]
        series = series_answer(drawn[CURVES], window, points, done_before, own).to_data()
        shared = {name: series[name] for name in ("resolutionSeconds", "at", "attempt", "step", "redone")}
        for name in training:
            values = series[name] if name in BUILT_IN else series["metrics"].get(name, [])
            if any(value is not None for value in values):
                lines = [{"values": values}]
                found[name] = {"name": name, "kind": "training", "unit": unit_of(name), **shared, "lines": lines}
    for kind in (SYSTEM, GPUS):
        if figures := [name for name in RULES[kind] if name in names]:
            found |= _system_curves(figures, drawn[kind], window, points)
    return MetricCurves.of(curves=[found[name] for name in dict.fromkeys(names) if name in found])


def _system_curves(names: Sequence[str], drawn: Drawn, window: TimeWindow, points: int) -> dict[str, dict[str, Any]]:
    """Returns the curves of workers or GPUs. If there are too many lines, their minimum, mean and maximum are drawn."""
    parts = []
    # A large job's parts are summarized as they are read, because together they would fill the memory.
    for part in chain(readable(drawn.read, drawn.blocks), drawn.tail):
        within = part.between(window.since, window.until)
        parts.append(within if len(part.ranks) <= MOST_CURVE_LINES else within.summarized())
    is_summary = len({rank for part in parts for rank in part.ranks}) > MOST_CURVE_LINES
    if is_summary or any(part.ranks == STATISTICS for part in parts):
        is_summary, parts = True, [part if part.ranks == STATISTICS else part.summarized() for part in parts]
    whole = joined(drawn.kind, parts)
    together, seconds = _together(whole.at, whole.attempt, points)
    first = together[0][0] if together else len(whole)
    thin = whole.part(first, len(whole)).combined([(begin - first, end - first) for begin, end in together])
    found = {}
    for name in (name for name in names if name in thin.values):
        rows, limits = thin.rows(name), thin.rows(LIMITS.get(name, ""))
        lines = []
        for place, rank in enumerate(thin.ranks):
            values = _rounded([row[place] for row in rows], 4)
            limit = next((row[place] for row in reversed(limits) if row[place] == row[place]), None)
            if any(value is not None for value in values):
                lines.append({**_place_of(drawn.kind, rank, is_summary), "limit": limit, "values": values})
        shared = {"at": thin.at, "attempt": thin.attempt, "redone": [False] * len(thin)}
        found[name] = {"name": name, "kind": "system", "unit": unit_of(name), **shared, "lines": lines}
        found[name]["resolutionSeconds"] = drawn.resolution(seconds)
    return found


def _place_of(kind: str, rank: int, is_summary: bool) -> dict[str, Any]:
    if is_summary:
        return {"of": ("minimum", "mean", "maximum")[STATISTICS.index(rank)]}
    return {"worker": rank} if kind == SYSTEM else {"worker": rank // MAX_GPUS, "gpu": rank % MAX_GPUS}


def heat_answer(drawn: Drawn, window: TimeWindow, columns: int, figure: str) -> RankHeat:
    """Returns the heat map. Reads all times first, and then adds the figures, block by block, to the map's cells.

    Raises Moved.
    """
    times = list(readable(lambda block: (block, *times_of_block(drawn.data(block))), drawn.blocks))
    in_window = [
        (at, attempt)
        for all_at, attempts in chain((each[1:] for each in times), ((part.at, part.attempt) for part in drawn.tail))
        for at, attempt in zip(all_at, attempts, strict=True)
        if window.since <= at <= window.until
    ]
    at, attempt = [each for each, _ in in_window], [each for _, each in in_window]
    together, seconds = _together(at, attempt, columns)
    cells = Cells(len(together), figure)
    first = together[0][0] if together else len(at)
    column_of = chain([-1] * first, *([column] * (end - first) for column, (first, end) in enumerate(together)))
    # If a block's figures are damaged, the block adds nothing to its columns.
    blocks = ((next(readable(lambda it: drawn.read(it, figure), [block]), None), times) for block, times, _ in times)
    for part, all_at in chain(blocks, ((part, part.at) for part in drawn.tail)):
        own = [next(column_of) if window.since <= each <= window.until else -1 for each in all_at]
        if part is not None and max(own, default=-1) >= 0:
            cells.add(part, own)
    values = cells.rows()
    places = sorted(_shown(values, len(cells.ranks)), key=cells.ranks.__getitem__)
    return RankHeat.of(
        figure=figure,
        resolutionSeconds=drawn.resolution(seconds),
        at=[at[end - 1] for _, end in together],
        attempt=[attempt[end - 1] for _, end in together],
        ranks=[cells.ranks[place] for place in places],
        workers=[cells.workers[place] for place in places],
        values=[_rounded([row[place] for place in places], 4) for row in values],
        leftOut=len(cells.ranks) + len(cells.beyond) - len(places),
    )


class Cells:
    """Cells are a heat map's cells: one figure for each rank and column, or NaN if it is unknown.

    A job can have tens of millions of figures. They are combined row by row as they are read, so the memory depends
    only on the map's columns and ranks.
    """

    def __init__(self, columns: int, figure: str) -> None:
        self.figure = figure
        self.ranks: list[int] = []
        self.workers: list[int] = []
        # Ranks for which the map has no room.
        self.beyond: set[int] = set()
        self._is_peak = RULES[HEAT][figure] is max
        self._place_of: dict[int, int] = {}
        # For each column and rank, the peak of the figures, or their sum. `_counts` contains the number of figures.
        self._values = [array("d") for _ in range(columns)]
        self._counts = [array("I") for _ in range(columns)]

    def add(self, part: Points, columns: Sequence[int]) -> None:
        """Adds each of a part's rows to its column. Rows with a negative column are skipped."""
        places = [self._place(rank, worker) for rank, worker in zip(part.ranks, part.workers, strict=True)]
        is_in_order = places == list(range(len(self.ranks)))
        for row, column in zip(part.rows(self.figure), columns, strict=True):
            if column >= 0 and not (is_in_order and self._add_whole(row, column)):
                self._add_each(row, places, column)

    def rows(self) -> list[array[float]]:
        """Returns each column's figures, in the order of `ranks`."""
        found = []
        for values, counts in zip(self._values, self._counts, strict=True):
            if not self._is_peak:
                values = array("d", (total / max(count, 1) for total, count in zip(values, counts, strict=True)))
            found.append(values + array("d", [NAN]) * (len(self.ranks) - len(values)))
        return found

    def _place(self, rank: int, worker: int) -> int:
        """Returns a rank's index in `ranks`, or -1 if there is no room, and records the rank's newest worker."""
        place = self._place_of.get(rank, -1)
        if place >= 0:
            self.workers[place] = worker
        elif len(self.ranks) < MAX_RANKS:
            place = self._place_of[rank] = len(self.ranks)
            self.ranks.append(rank)
            self.workers.append(worker)
        elif len(self.beyond) < _MOST_COUNTED:
            self.beyond.add(rank)
        return place

    def _add_whole(self, row: array[float], column: int) -> bool:
        """Adds a row with all ranks in order, the usual case. Returns False if it can't, e.g. for an unknown figure."""
        values, counts = self._values[column], self._counts[column]
        total = sum(row) + sum(values)
        if total != total or len(values) not in (0, len(row)):
            return False
        if not values:
            self._values[column], self._counts[column] = row, array("I", [1]) * len(row)
        elif self._is_peak:
            self._values[column] = array("d", map(max, values, row))
        else:
            self._values[column] = array("d", map(add, values, row))
            self._counts[column] = array("I", map(add, counts, repeat(1)))
        return True

    def _add_each(self, row: array[float], places: Sequence[int], column: int) -> None:
        values, counts = self._values[column], self._counts[column]
        missing = len(self.ranks) - len(values)
        values.extend(array("d", [NAN]) * missing)
        counts.extend(array("I", [0]) * missing)
        for value, place in zip(row, places, strict=True):
            if place < 0 or value != value:
                continue
            old = values[place]
            values[place] = value if old != old else max(old, value) if self._is_peak else old + value
            counts[place] += 1


def _together(at: Sequence[float], attempt: Sequence[int], points: int) -> tuple[list[tuple[int, int]], float]:
    """Divides points into spans, which become a point each. Returns the newest `points` spans and their width (s)."""
    least = (at[-1] - at[0]) / points if len(at) > points else 0.0
    nice = (float(seconds) for seconds in _NICE_SECONDS if seconds >= least)
    for seconds in chain(nice, (86_400.0 * 2**n for n in range(1, 17))) if len(at) > points else [0.0]:
        together = spans(at, attempt, seconds)
        if len(together) <= points:
            break
    together = together[max(0, len(together) - points) :]
    distances = [at[later - 1] - at[end - 1] for (_, end), (_, later) in pairwise(together)]
    return together, seconds or round(median(distances) if distances else 0.0, 3)


def _shown(values: Sequence[Sequence[float]], ranks: int) -> set[int]:
    """Returns the places of the displayed ranks: the slowest, the fastest, and every n-th of the remaining ranks."""
    if ranks <= MOST_RANKS:
        return set(range(ranks))
    mean = [_mean([row[place] for row in values]) for place in range(ranks)]
    order = sorted(range(ranks), key=mean.__getitem__)
    middle = order[_ENDS:-_ENDS]
    room = MOST_RANKS - 2 * _ENDS
    chosen = [middle[place * len(middle) // room] for place in range(room)]
    return {*order[:_ENDS], *order[-_ENDS:], *chosen}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else 0.0


def _rounded(values: Sequence[float], digits: int) -> list[float | None]:
    """Returns figures rounded to this number of significant digits; unknown figures become None."""
    shape = f".{digits}g"
    return [_round(value, shape) if value - value == 0.0 else None for value in values]


@lru_cache(100_000)
def _round(value: float, shape: str) -> float:
    # The cache is effective because figures are kept with few bits, so a heat map contains few different ones.
    return float(format(value, shape))
