"""What charts draw is read here: curves and heat of a window of time, in no more points than they have room for."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from statistics import median
from typing import Any, TypeVar

from trainmaster.history import curves, heat, samples
from trainmaster.history.aging import CURVES, HEAT
from trainmaster.history.curves import NO_STEP, SPENT, Curves
from trainmaster.history.heat import Heat
from trainmaster.history.packing import readable
from trainmaster.history.schema import layouts
from trainmaster.history.store import slice_of
from trainmaster.history.thinning import LEVEL_SECONDS

MAX_COLUMNS, MAX_RANKS = 240, 1_024
# Of more ranks than that: so many of the slowest, and of the fastest.
_ENDS = 256
# Figures of ranks that are too many to be held as they are.
_MUCH = 1_000_000
# Widths of a point that are tried until there are few enough.
_NICE_SECONDS = (2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 57_600, 86_400)


Drawn = TypeVar("Drawn", Curves, Heat)


@dataclass(frozen=True)
class Window:
    """Window is the time that is looked at, in seconds since the epoch."""

    since: float = 0.0
    until: float = math.inf


def series_answer(
    connection: sqlite3.Connection, job: int, window: Window, points: int, done_before: Mapping[int, int]
) -> dict[str, Any]:
    """Returns a Series. `done_before` has the furthest step of all attempts before each."""
    orders = layouts(connection)
    rows = _blocks(connection, job, CURVES, window)
    found = curves.joined(readable(lambda row: Curves.of_block(row[0], orders[row[1]]), rows))
    found.extend(samples.of_rows(_tail(connection, job))[0])
    found = found.between(window.since, window.until)
    stored = LEVEL_SECONDS[max((level for *_, level in rows), default=0)]
    thin, seconds = _fitted(found, points)
    figures = {name: _rounded(values, 7) for name, values in thin.figures.items()}
    return {
        "kind": "Series",
        "resolutionSeconds": max(seconds, stored),
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


def heat_answer(connection: sqlite3.Connection, job: int, window: Window, columns: int, figure: str) -> dict[str, Any]:
    """Returns a RankHeat."""
    rows = _blocks(connection, job, HEAT, window)
    blocks = readable(lambda row: Heat.of_block(row[0], figure), rows)
    of_tail = [part.only(figure) for part in samples.of_rows(_tail(connection, job))[1]]
    # What is too much to be held at once is made less block by block.
    seconds = _seconds_of_much(connection, job, window, columns)
    parts = [part.between(window.since, window.until).thinned(seconds) for part in chain(blocks, of_tail)]
    known = len({rank for part in parts for rank in part.ranks})
    found = heat.joined(parts)
    stored = LEVEL_SECONDS[max((level for *_, level in rows), default=0)]
    thin, seconds = _fitted(found, columns)
    values = thin.rows(figure)
    places = _places(values, len(thin.ranks))
    return {
        "kind": "RankHeat",
        "figure": figure,
        "resolutionSeconds": max(seconds, stored),
        "at": thin.at,
        "attempt": thin.attempt,
        "ranks": [thin.ranks[place] for place in places],
        "workers": [thin.workers[place] for place in places],
        "values": [_rounded([row[place] for place in places], 4) for row in values],
        "leftOut": known - len(places),
    }


def _seconds_of_much(connection: sqlite3.Connection, job: int, window: Window, columns: int) -> float:
    """Returns the seconds of half a column where there are many figures of ranks; 0 where there aren't."""
    first, last, figures = connection.execute(
        "SELECT min(first), max(last), total(points * shape) FROM blocks "
        "WHERE job = ? AND kind = ? AND last >= ? AND first <= ?",
        (job, HEAT, window.since, min(window.until, 1e15)),
    ).fetchone()
    if figures <= _MUCH:
        return 0.0
    return float(min(last, window.until) - max(first, window.since)) / (2 * columns)


def _blocks(connection: sqlite3.Connection, job: int, kind: str, window: Window) -> list[tuple[bytes, int, int]]:
    """Returns the blocks of a window, by time: bytes, shape and level."""
    return connection.execute(
        "SELECT data, shape, level FROM blocks WHERE job = ? AND kind = ? AND last >= ? AND first <= ? "
        "ORDER BY level DESC, first, id",
        (job, kind, window.since, min(window.until, 1e15)),
    ).fetchall()


def _tail(connection: sqlite3.Connection, job: int) -> list[tuple[float, str]]:
    return connection.execute(
        "SELECT at, data FROM tail WHERE slice = ? AND job = ? ORDER BY id", (slice_of(job), job)
    ).fetchall()


def _fitted(found: Drawn, points: int) -> tuple[Drawn, float]:
    """Returns at most so many points, and the seconds of one; of a job with more attempts than that the newest."""
    for seconds in _widths(found.at, points):
        thin = found.thinned(seconds)
        if len(thin) <= points:
            break
    distances = [later - earlier for earlier, later in pairwise(thin.at)]
    thin = thin.part(max(0, len(thin) - points), len(thin))
    return thin, seconds or round(median(distances) if distances else 0.0, 3)


def _widths(at: Sequence[float], points: int) -> list[float]:
    """Returns the seconds of a point to try, from the least with which there may be few enough points."""
    if len(at) <= points:
        return [0.0]
    least = (at[-1] - at[0]) / points
    return [
        *(float(seconds) for seconds in _NICE_SECONDS if seconds >= least),
        *(86_400.0 * 2**n for n in range(1, 17)),
    ]


def _places(values: Sequence[Sequence[float]], ranks: int) -> list[int]:
    """Returns which ranks are shown: the slowest, the fastest, and an even choice of the others."""
    if ranks <= MAX_RANKS:
        return list(range(ranks))
    mean = [_mean([row[place] for row in values]) for place in range(ranks)]
    order = sorted(range(ranks), key=mean.__getitem__)
    middle = order[_ENDS:-_ENDS]
    room = MAX_RANKS - 2 * _ENDS
    chosen = [middle[place * len(middle) // room] for place in range(room)]
    return sorted([*order[:_ENDS], *order[-_ENDS:], *chosen])


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
