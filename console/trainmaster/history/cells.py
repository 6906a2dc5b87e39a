"""A heat map's cells, a figure of each rank in each column, are combined as rows come, so that no job's are too many.

A job may have tens of millions of figures. Of these only one row of a block is unpacked at a time, and what is held is
bounded by the columns and the ranks of a map.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import add

from trainmaster.history.heat import FIGURES, MAX_RANKS, Heat
from trainmaster.history.packing import NAN

# Ranks beyond MAX_RANKS are counted, but no more of them than this: a job's pods choose their numbers.
_MOST_COUNTED = 100_000


class Cells:
    """Cells hold one figure; a cell without any is NaN."""

    def __init__(self, columns: int, figure: str) -> None:
        self.figure = figure
        self.ranks: list[int] = []
        self.workers: list[int] = []
        self._is_peak = FIGURES[figure] is max
        self._place_of: dict[int, int] = {}
        self._beyond: set[int] = set()
        # Peaks, or sums; of these a second array has how many figures are in each.
        self._values = [array("d") for _ in range(columns)]
        self._counts = [array("I") for _ in range(columns)]

    @property
    def beyond(self) -> int:
        """Returns how many ranks there is no room for."""
        return len(self._beyond)

    def add(self, part: Heat, columns: Sequence[int]) -> None:
        """Adds a part's rows, each to its column; a negative one is left out."""
        places = self._places(part)
        is_in_order = places == list(range(len(self.ranks)))
        for row, column in zip(part.rows(self.figure), columns, strict=True):
            if column < 0:
                continue
            if is_in_order and self._add_whole(row, column):
                continue
            self._add_each(row, places, column)

    def rows(self) -> list[array[float]]:
        """Returns each column's figures, by the order of `ranks`."""
        found = []
        for values, counts in zip(self._values, self._counts, strict=True):
            if not self._is_peak:
                values = array("d", (total / max(count, 1) for total, count in zip(values, counts, strict=True)))
            found.append(values + array("d", [NAN]) * (len(self.ranks) - len(values)))
        return found

    def _places(self, part: Heat) -> list[int]:
        """Returns the place of each rank of a part; -1 where there is no room for it. A rank's last worker counts."""
        places = []
        for rank, worker in zip(part.ranks, part.workers, strict=True):
            place = self._place_of.get(rank, -1)
            if place >= 0:
                self.workers[place] = worker
            elif len(self.ranks) < MAX_RANKS:
                place = self._place_of[rank] = len(self.ranks)
                self.ranks.append(rank)
                self.workers.append(worker)
            elif len(self._beyond) < _MOST_COUNTED:
                self._beyond.add(rank)
            places.append(place)
        return places

    def _add_whole(self, row: array[float], column: int) -> bool:
        """Adds a row of all ranks in order, and returns True; False where a figure is unknown. This is the rule."""
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
            if old != old:
                values[place] = value
            elif not self._is_peak:
                values[place] = old + value
            elif value > old:
                values[place] = value
            counts[place] += 1
