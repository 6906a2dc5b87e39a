"""What charts draw is read here: curves and heat of a window of time, in no more points than they have room for."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from statistics import median
from typing import Any

from trainmaster.history import curves, heat, samples
from trainmaster.history.cells import Cells
from trainmaster.history.curves import NO_STEP, SPENT, Curves
from trainmaster.history.heat import Heat
from trainmaster.history.packing import readable
from trainmaster.history.schema import layouts
from trainmaster.history.store import slice_of
from trainmaster.history.thinning import LEVEL_SECONDS, spans

MAX_COLUMNS, MAX_RANKS = 240, 1_024
# Of more ranks than that: so many of the slowest, and of the fastest.
_ENDS = 256
# Widths of a point that are tried until there are few enough.
_NICE_SECONDS = (2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 57_600, 86_400)


class Moved(Exception):
    """A block was packed anew while it was to be read: ask again."""


@dataclass(frozen=True)
class Window:
    """Window is the time that is looked at, in seconds since the epoch."""

    since: float = 0.0
    until: float = math.inf


@dataclass(frozen=True)
class Block:
    """Block is a block of figures as the file's index has it."""

    id: int
    shape: int
    level: int


@dataclass(frozen=True)
class Drawn:
    """Drawn is what a job has of one kind in a window, by time: blocks, whose data is read one by one, and the tail.

    `check` is called before each block: it raises where the answer takes too long.
    """

    connection: sqlite3.Connection
    job: int
    blocks: Sequence[Block]
    tail: Sequence[tuple[float, str]]
    check: Callable[[], None]

    @classmethod
    def of(
        cls, connection: sqlite3.Connection, job: int, kind: str, window: Window, check: Callable[[], None]
    ) -> Drawn:
        """Reads the index, and the newest samples."""
        blocks = connection.execute(
            "SELECT id, shape, level FROM blocks WHERE job = ? AND kind = ? AND last >= ? AND first <= ? "
            "ORDER BY level DESC, first, id",
            (job, kind, window.since, min(window.until, 1e15)),
        )
        tail = connection.execute(
            "SELECT at, data FROM tail WHERE slice = ? AND job = ? ORDER BY id", (slice_of(job), job)
        )
        return cls(connection, job, [Block(*row) for row in blocks], tail.fetchall(), check)

    @property
    def stored_seconds(self) -> float:
        """Returns the seconds of a point at the coarsest level."""
        return LEVEL_SECONDS[max((block.level for block in self.blocks), default=0)]

    def data(self, block: Block) -> bytes:
        """Returns a block's data. Raises Moved."""
        self.check()
        # Another job's block may have got its number.
        row = self.connection.execute(
            "SELECT data FROM blocks WHERE id = ? AND job = ? AND level = ?", (block.id, self.job, block.level)
        ).fetchone()
        if row is None:
            raise Moved
        return bytes(row[0])


def series_answer(drawn: Drawn, window: Window, points: int, done_before: Mapping[int, int]) -> dict[str, Any]:
    """Returns a Series. `done_before` has the furthest step of all attempts before each. Raises Moved."""
    orders = layouts(drawn.connection)
    found = curves.joined(readable(lambda block: Curves.of_block(drawn.data(block), orders[block.shape]), drawn.blocks))
    found.extend(samples.of_rows(drawn.tail)[0])
    found = found.between(window.since, window.until)
    thin, seconds = _fitted(found, points)
    figures = {name: _rounded(values, 7) for name, values in thin.figures.items()}
    return {
        "kind": "Series",
        "resolutionSeconds": max(seconds, drawn.stored_seconds),
        "at": thin.at,
        "attempt": thin.attempt,
        "step": [None if step == NO_STEP else step for step in thin.step],
        **{name: values for name, values in figures.items() if not name.startswith(SPENT)},
        "redone": [
            step != NO_STEP and step <= done_before.get(attempt, NO_STEP)
            for step, attempt in zip(thin.step, thin.attempt, strict=True)
        ],
        "timeSpent": {name.removeprefix(SPENT): values for name, values in figures.items() if name.startswith(SPENT)},
    }


def heat_answer(drawn: Drawn, window: Window, columns: int, figure: str) -> dict[str, Any]:
    """Returns a RankHeat: all times are read first, then the figures block by block into the map's cells.

    Raises Moved.
    """
    of_tail = samples.of_rows(drawn.tail)[1]
    times = list(readable(lambda block: (block, *heat.times_of_block(drawn.data(block))), drawn.blocks))
    in_window = [
        (at, attempt)
        for all_at, attempts in chain((each[1:] for each in times), ((part.at, part.attempt) for part in of_tail))
        for at, attempt in zip(all_at, attempts, strict=True)
        if window.since <= at <= window.until
    ]
    at, attempt = [each for each, _ in in_window], [each for _, each in in_window]
    together, seconds = _together(at, attempt, columns)
    cells = Cells(len(together), figure)
    column_of = iter(_columns(together, len(at)))

    def add(part: Heat | None, all_at: Sequence[float]) -> None:
        own = [next(column_of) if window.since <= each <= window.until else -1 for each in all_at]
        if part is not None and max(own, default=-1) >= 0:
            cells.add(part, own)

    for block, all_at, _ in times:
        # A block whose figures are damaged leaves its columns as they are.
        add(next(readable(lambda found: Heat.of_block(drawn.data(found), figure), [block]), None), all_at)
    for part in of_tail:
        add(part, part.at)
    values = cells.rows()
    places = sorted(_shown(values, len(cells.ranks)), key=cells.ranks.__getitem__)
    return {
        "kind": "RankHeat",
        "figure": figure,
        "resolutionSeconds": max(seconds, drawn.stored_seconds),
        "at": [at[end - 1] for _, end in together],
        "attempt": [attempt[end - 1] for _, end in together],
        "ranks": [cells.ranks[place] for place in places],
        "workers": [cells.workers[place] for place in places],
        "values": [_rounded([row[place] for place in places], 4) for row in values],
        "leftOut": len(cells.ranks) + cells.beyond - len(places),
    }


def _columns(together: Sequence[tuple[int, int]], points: int) -> Iterator[int]:
    """Yields the column of each point; -1 for those before the first column."""
    first = together[0][0] if together else points
    yield from [-1] * first
    for column, (first, end) in enumerate(together):
        yield from [column] * (end - first)


def _fitted(found: Curves, points: int) -> tuple[Curves, float]:
    """Returns at most so many points, and the seconds of one; of a job with more attempts than that the newest."""
    together, seconds = _together(found.at, found.attempt, points)
    first = together[0][0] if together else len(found)
    return found.part(first, len(found)).combined([(begin - first, end - first) for begin, end in together]), seconds


def _together(at: Sequence[float], attempt: Sequence[int], points: int) -> tuple[list[tuple[int, int]], float]:
    """Returns which points become one, so that there are at most so many, the newest; and the seconds of one."""
    for seconds in _widths(at, points):
        together = spans(at, attempt, seconds)
        if len(together) <= points:
            break
    together = together[max(0, len(together) - points) :]
    distances = [at[later - 1] - at[end - 1] for (_, end), (_, later) in pairwise(together)]
    return together, seconds or round(median(distances) if distances else 0.0, 3)


def _widths(at: Sequence[float], points: int) -> list[float]:
    """Returns the seconds of a point to try, from the least with which there may be few enough points."""
    if len(at) <= points:
        return [0.0]
    least = (at[-1] - at[0]) / points
    return [
        *(float(seconds) for seconds in _NICE_SECONDS if seconds >= least),
        *(86_400.0 * 2**n for n in range(1, 17)),
    ]


def _shown(values: Sequence[Sequence[float]], ranks: int) -> set[int]:
    """Returns the places of the ranks that are shown: the slowest, the fastest, and an even choice of the others."""
    if ranks <= MAX_RANKS:
        return set(range(ranks))
    mean = [_mean([row[place] for row in values]) for place in range(ranks)]
    order = sorted(range(ranks), key=mean.__getitem__)
    middle = order[_ENDS:-_ENDS]
    room = MAX_RANKS - 2 * _ENDS
    chosen = [middle[place * len(middle) // room] for place in range(room)]
    return {*order[:_ENDS], *order[-_ENDS:], *chosen}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else 0.0


def _rounded(values: Sequence[float], digits: int) -> list[float | None]:
    """Returns figures with the digits that they are kept with; None for one that isn't known."""
    shape = f".{digits}g"
    return [_round(value, shape) if value - value == 0.0 else None for value in values]


@lru_cache(100_000)
def _round(value: float, shape: str) -> float:
    # Of a heat map's figures there are only so many, with their eleven bits.
    return float(format(value, shape))
