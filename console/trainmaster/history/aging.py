"""Samples age: those of the tail are packed into blocks, and blocks of many points become blocks of few (`thinning`).

It goes in small steps, between which records are written: one slice of the tail, or one level of one job.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from trainmaster.history import curves, heat, samples
from trainmaster.history.curves import Curves
from trainmaster.history.heat import Heat, block_points, kept_points
from trainmaster.history.packing import readable
from trainmaster.history.schema import layout_of, layouts
from trainmaster.history.store import Store
from trainmaster.history.thinning import BLOCK_POINTS, KEPT_POINTS, LEVEL_SECONDS

# Seconds that a sample stands in the tail, and the bytes of a slice of it after which none waits any longer.
TAIL_SECONDS, TAIL_BYTES = 120.0, 1_000_000
CURVES, HEAT = "curves", "heat"
# Figures of ranks that one step moves: more than what becomes a block of the next level has.
_MOVED_CELLS = 800_000
# Of samples that come every two seconds, so many become one; of later levels' points it follows from their seconds.
_SAMPLES_IN_A_POINT = 5


class Aging:
    """Aging makes the steps of one store."""

    def __init__(self, store: Store, tail_bytes: int = TAIL_BYTES) -> None:
        self._store = store
        self._tail_bytes = tail_bytes
        self._connection = store.connection
        # Levels that may have too many points: job, kind, level. Those that are left at a stop are found at the next
        # block of their job.
        self._grown: set[tuple[int, str, int]] = set()

    def step(self, *, at_once: bool = False) -> bool:
        """Makes one step; returns False where none was due. `at_once` packs young samples too. Raises sqlite3.Error."""
        if self._grown:
            self._store.write(self._thin)
            return True
        oldest = time.monotonic() - TAIL_SECONDS
        for number, part in self._store.tail.items():
            if at_once or part.since <= oldest or part.bytes >= self._tail_bytes:
                self._store.write(partial(self._pack, number))
                del self._store.tail[number]
                return True
        return False

    def _pack(self, number: int) -> None:
        """Makes blocks of a slice of the tail."""
        rows: dict[int, list[tuple[float, str]]] = {}
        found = self._connection.execute("SELECT job, at, data FROM tail WHERE slice = ? ORDER BY id", (number,))
        for job, at, text in found:
            rows.setdefault(job, []).append((at, text))
        self._connection.execute("DELETE FROM tail WHERE slice = ?", (number,))
        for job, own in rows.items():
            if self._connection.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchone():
                points, parts = samples.of_rows(own)
                self._add_curves(job, 0, points)
                self._add_heat(job, 0, parts)

    def _thin(self) -> None:
        """Moves the oldest points of a level, where it has too many, to the next one."""
        job, kind, level = self._grown.pop()
        blocks = self._connection.execute(
            "SELECT id, points, shape FROM blocks WHERE job = ? AND kind = ? AND level = ? ORDER BY first, id",
            (job, kind, level),
        ).fetchall()
        if not blocks:
            return
        ranks = max(shape for *_, shape in blocks)
        kept, size = (KEPT_POINTS, BLOCK_POINTS) if kind == CURVES else (kept_points(ranks), block_points(ranks))
        is_last = level + 1 == len(LEVEL_SECONDS)
        factor = 1.0 if is_last else LEVEL_SECONDS[level + 1] / LEVEL_SECONDS[level] if level else _SAMPLES_IN_A_POINT
        taken, count, total = list[int](), 0, sum(points for _, points, _ in blocks)
        # So many become one block of the next level.
        if total < kept + size * factor:
            return
        cells = 0
        for number, points, shape in blocks:
            cells += points * shape if kind == HEAT else 0
            if taken and (count + points > total - kept or cells > _MOVED_CELLS):
                break
            taken.append(number)
            count += points
        if not is_last:
            self._move(job, kind, level + 1, taken)
        self._connection.executemany("DELETE FROM blocks WHERE id = ?", [(number,) for number in taken])
        if total - count >= kept + size * factor:
            self._grown.add((job, kind, level))

    def _move(self, job: int, kind: str, level: int, numbers: Sequence[int]) -> None:
        """Adds blocks' points to a level, combined by its seconds."""
        data = [
            self._connection.execute("SELECT data, shape FROM blocks WHERE id = ?", (number,)).fetchone()
            for number in numbers
        ]
        if kind == CURVES:
            orders = layouts(self._connection)
            points = curves.joined(readable(lambda found: Curves.of_block(found[0], orders[found[1]]), data))
            self._add_curves(job, level, points.thinned(LEVEL_SECONDS[level]))
        else:
            part = heat.joined(readable(lambda found: Heat.of_block(found[0]), data))
            self._add_heat(job, level, [part.thinned(LEVEL_SECONDS[level], with_mean=True)])

    def _add_curves(self, job: int, level: int, points: Curves) -> None:
        if points:
            self._add(job, CURVES, level, points, layout_of(self._connection))

    def _add_heat(self, job: int, level: int, parts: Sequence[Heat]) -> None:
        size = block_points(max((len(part.ranks) for part in parts), default=1))
        for part in parts:
            for block in part.cut(size):
                self._add(job, HEAT, level, block, len(block.ranks))

    def _add(self, job: int, kind: str, level: int, block: Curves | Heat, shape: int) -> None:
        self._connection.execute(
            "INSERT INTO blocks (job, kind, level, first, last, points, shape, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (job, kind, level, block.at[0], block.at[-1], len(block), shape, block.to_block()),
        )
        self._grown.add((job, kind, level))
