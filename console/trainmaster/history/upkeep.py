"""Keeps the file small, in small steps between the writes of records.

`Aging` packs the tail's samples into blocks, and combines the points of blocks as they age, as `figures` describes. A
step handles one slice of the tail, or one level of one job.

`Trimming` deletes old jobs, and keeps the file below its maximum size. If the file is too large, data of the largest
namespace is deleted, so a namespace that creates jobs, attempts or logs endlessly takes nothing from other namespaces.
That namespace first loses the figures of its oldest ended jobs, then these jobs' logs and evidence, then these jobs.
Next it loses the oldest figures, texts and attempts of its largest job, and last the jobs whose records are oldest. No
job may fill more than a sixteenth of the file. Each step returns free pages to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from trainmaster.history.figures import (
    HEAT,
    LEVEL_SECONDS,
    Points,
    block_points,
    joined,
    kept_points,
    of_tail,
    readable,
)
from trainmaster.history.settings import SECONDS_OF_A_DAY
from trainmaster.history.store import HistoryStore, slice_of

# Seconds after which a slice of the tail is packed, and bytes at which it is packed earlier.
TAIL_SECONDS, TAIL_BYTES = 120.0, 1_000_000
# Maximum number of ranks' values that one step moves. A block of the next level needs fewer.
_MOVED_CELLS = 800_000
# Number of samples, one every two seconds, that become one point of level 1. LEVEL_SECONDS determines how many points
# become one point of a later level.
_SAMPLES_IN_A_POINT = 5
# A job's maximum share of the file, and the share of the file that may be in use. Writes and moves need the rest.
_SHARE, _FULL = 1 / 16, 0.9
# Maximum rows that one step deletes, jobs that it deletes, and pages that it returns to the disk.
_ROWS, _JOBS, _PAGES = 100, 50, 2_000
# Seconds until the next step after one that found nothing to do.
_REST_SECONDS = 5.0
# Tables with jobs' rows besides `jobs` and `tail`, each with its key within a job, in the order of deletion.
_TABLES = {"blocks": "id", "evidence": "key", "logs": "key", "attempts": "attempt", "metrics": "name"}
_TABLES |= {"objects": "job"}
_OVER = "coalesce(deleted, ended)"


def _has(*tables: str) -> str:
    return " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE job = jobs.id)" for table in tables)


_TWO_ATTEMPTS = "(SELECT count(*) FROM (SELECT 1 FROM attempts WHERE job = jobs.id LIMIT 2)) > 1"
_HAS_MORE = f"({_has('blocks', 'logs', 'evidence')} OR {_TWO_ATTEMPTS})"


class Aging:
    """Aging packs and combines the figures of one store."""

    def __init__(self, store: HistoryStore, tail_bytes: int = TAIL_BYTES) -> None:
        self._store = store
        self._tail_bytes = tail_bytes
        self._connection = store.connection
        # Levels (job, kind, level) that may have too many points. After a restart, a job's next block adds them again.
        self._grown: set[tuple[int, str, int]] = set()

    def step(self, *, at_once: bool = False) -> bool:
        """Runs one step. Returns False if none was due. `at_once` packs young samples too. Raises sqlite3.Error."""
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
        """Packs a slice of the tail into blocks."""
        rows: dict[int, list[tuple[float, str]]] = {}
        found = self._connection.execute("SELECT job, at, data FROM tail WHERE slice = ? ORDER BY id", (number,))
        for job, at, text in found:
            rows.setdefault(job, []).append((at, text))
        self._connection.execute("DELETE FROM tail WHERE slice = ?", (number,))
        for job, own in rows.items():
            if self._connection.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchone():
                for parts in of_tail(own).values():
                    self._add(job, 0, parts)

    def _thin(self) -> None:
        """Moves the oldest points of a level to the next level if there are too many."""
        job, kind, level = self._grown.pop()
        blocks = self._connection.execute(
            "SELECT id, points, ranks FROM blocks WHERE job = ? AND kind = ? AND level = ? ORDER BY first, id",
            (job, kind, level),
        ).fetchall()
        if not blocks:
            return
        ranks = max(ranks for *_, ranks in blocks)
        kept, size = kept_points(ranks), block_points(ranks)
        is_last = level + 1 == len(LEVEL_SECONDS)
        factor = 1.0 if is_last else LEVEL_SECONDS[level + 1] / LEVEL_SECONDS[level] if level else _SAMPLES_IN_A_POINT
        taken, count, total = list[int](), 0, sum(points for _, points, _ in blocks)
        # `size * factor` points become one block of the next level.
        if total < kept + size * factor:
            return
        cells = 0
        for number, points, ranks in blocks:
            cells += points * ranks
            if taken and (count + points > total - kept or cells > _MOVED_CELLS):
                break
            taken.append(number)
            count += points
        if not is_last:
            select = "SELECT data FROM blocks WHERE id = ?"
            data = [self._connection.execute(select, (each,)).fetchone()[0] for each in taken]
            points_of = joined(kind, readable(partial(Points.of_block, kind), data))
            self._add(job, level + 1, [points_of.thinned(LEVEL_SECONDS[level + 1])])
        self._connection.executemany("DELETE FROM blocks WHERE id = ?", [(number,) for number in taken])
        if total - count >= kept + size * factor:
            self._grown.add((job, kind, level))

    def _add(self, job: int, level: int, parts: Sequence[Points]) -> None:
        size = block_points(max((len(part.ranks) for part in parts), default=1))
        for part in parts:
            for first in range(0, len(part), size):
                block = part.part(first, min(first + size, len(part)))
                times, size_of = (block.at[0], block.at[-1]), (len(block), len(block.ranks))
                self._connection.execute(
                    "INSERT INTO blocks (job, kind, level, first, last, points, ranks, data) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (job, block.kind, level, *times, *size_of, block.to_block()),
                )
                self._grown.add((job, block.kind, level))


class Trimming:
    """Trimming deletes data of one store."""

    def __init__(self, store: HistoryStore, max_bytes: int, keep_days: float) -> None:
        self._store = store
        self._connection = store.connection
        self._full = max_bytes * _FULL
        self._share = max_bytes * _SHARE
        self._keep_seconds = keep_days * SECONDS_OF_A_DAY
        self._rests_until = 0.0

    def step(self) -> bool:
        """Runs one step. Returns False if none was due. Raises sqlite3.Error."""
        is_over = self.is_over()
        if not is_over and time.monotonic() < self._rests_until:
            return False
        change = self._give_way() if is_over else self._due()
        if change is not None:
            self._store.write(change)
        if self._give_back() or change is not None:
            return True
        self._rests_until = time.monotonic() + _REST_SECONDS
        return False

    def is_over(self) -> bool:
        """Returns whether the file is too large."""
        return self._store.used() > self._full

    def _due(self) -> Callable[[], object] | None:
        """Returns the next due deletion, of old jobs or of data of a job that is too large; None if none is due."""
        old = f"SELECT id FROM jobs WHERE coalesce({_OVER}, seen) < ? ORDER BY {_OVER} LIMIT {_JOBS}"
        if found := self._jobs(old, self._store.now() - self._keep_seconds):
            return partial(self._delete_jobs, found)
        large = self._jobs(f"SELECT id FROM jobs WHERE bytes > ? AND {_HAS_MORE} LIMIT 1", self._share)
        return partial(self._delete_oldest, large[0]) if large else None

    def _give_way(self) -> Callable[[], object] | None:
        """Returns the next deletion in the largest namespace; None if the history is empty."""
        most = self._connection.execute("SELECT name FROM namespaces ORDER BY bytes DESC LIMIT 1").fetchone()
        if most is None:
            return None
        over = f"FROM jobs WHERE namespace = ? AND {_OVER} IS NOT NULL"
        for tables in (("blocks",), ("logs", "evidence")):
            if found := self._jobs(f"SELECT id {over} AND ({_has(*tables)}) ORDER BY {_OVER} LIMIT 1", *most):
                return partial(self._delete_of, found[0], tables)
        if found := self._enough(f"SELECT id, bytes {over} ORDER BY {_OVER} LIMIT {_JOBS}", *most):
            return partial(self._delete_jobs, found)
        largest = f"SELECT id FROM jobs WHERE namespace = ? AND {_HAS_MORE} ORDER BY bytes DESC LIMIT 1"
        if found := self._jobs(largest, *most):
            return partial(self._delete_oldest, found[0])
        found = self._enough(f"SELECT id, bytes FROM jobs WHERE namespace = ? ORDER BY seen LIMIT {_JOBS}", *most)
        return partial(self._delete_jobs, found)

    def _delete_oldest(self, job: int) -> None:
        """Deletes old data of a job, but not the job: heat, then curves, texts, and all attempts except the newest."""
        oldest = "SELECT id FROM blocks WHERE job = ? ORDER BY kind != ?, last LIMIT ?"
        blocks = self._connection.execute(f"DELETE FROM blocks WHERE id IN ({oldest})", (job, HEAT, _ROWS // 10))
        if not blocks.rowcount and not self._delete_of(job, ("evidence", "logs")):
            newest = "(SELECT max(attempt) FROM attempts WHERE job = ?1)"
            self._connection.execute(
                "DELETE FROM attempts WHERE job = ?1 AND attempt IN (SELECT attempt FROM attempts "
                f"WHERE job = ?1 AND attempt < {newest} ORDER BY attempt LIMIT {_ROWS})",
                (job,),
            )

    def _delete_of(self, job: int, tables: Sequence[str]) -> int:
        """Deletes some of a job's rows from the first of these tables that contains any; returns how many."""
        for table in tables:
            key = _TABLES[table]
            deleted = self._connection.execute(
                f"DELETE FROM {table} WHERE job = ?1 AND {key} IN "
                f"(SELECT {key} FROM {table} WHERE job = ?1 ORDER BY {key} LIMIT {_ROWS})",
                (job,),
            )
            if deleted.rowcount:
                return deleted.rowcount
        return 0

    def _delete_jobs(self, jobs: Sequence[int]) -> None:
        """Deletes the jobs in this order, until one step's limit is reached."""
        left = _ROWS
        for job in jobs:
            while left > 0 and (deleted := self._delete_of(job, list(_TABLES))):
                left -= deleted
            if left <= 0:
                return
            self._connection.execute("DELETE FROM tail WHERE slice = ? AND job = ?", (slice_of(job), job))
            self._connection.execute("DELETE FROM jobs WHERE id = ?", (job,))
            self._store.forget(job)

    def _give_back(self) -> bool:
        """Returns free pages to the disk if there are many, or if the file is too large; returns whether it did."""
        free = self._store.pragma("freelist_count")
        is_large = self._store.pragma("page_count") * self._store.pragma("page_size") > self._full
        if not free or (free < _PAGES and not is_large):
            return False
        # SQLite returns one page for each row that is fetched.
        self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        return True

    def _enough(self, statement: str, *values: str) -> list[int]:
        """Returns the first selected jobs, as many as must be deleted to make enough room."""
        found, left = [], self._store.used() - self._full
        for job, size in self._connection.execute(statement, values):
            if left <= 0:
                break
            found.append(int(job))
            left -= size
        return found

    def _jobs(self, statement: str, *values: float | str) -> list[int]:
        return [int(job) for (job,) in self._connection.execute(statement, values)]
