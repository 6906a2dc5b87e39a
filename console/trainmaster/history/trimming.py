"""The file stays below its bytes, and jobs go when they are old: what goes first is what is missed least.

Over the bytes, the namespace that has most gives way with all that it has, so that one that makes jobs, attempts or
logs without end takes nothing from the others: its oldest ended jobs' figures go, then their logs and evidence, then
these jobs whole; of jobs that run the largest one's oldest figures, texts and attempts, and last those jobs that were
seen longest ago. No job has more than a share of the file. Each step is small, and gives its pages back to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from trainmaster.history.settings import SECONDS_OF_A_DAY
from trainmaster.history.store import Store, slice_of

# A job's share of the file, and the part of the file that may be full: what is being written and moved needs the rest.
_SHARE, _FULL = 1 / 16, 0.9
# Rows that one step deletes, or whole jobs; pages that it gives back.
_ROWS, _JOBS, _PAGES = 100, 50, 2_000
# Seconds between two looks: each goes through all jobs.
_REST_SECONDS = 5.0
# Tables with rows of jobs beside `jobs` and `tail`, by their key within a job, in the order in which a whole job goes.
_TABLES = {"blocks": "id", "evidence": "key", "logs": "key", "attempts": "attempt", "objects": "job"}
_OVER = "coalesce(deleted, ended)"
_HAS_MORE = " OR ".join(
    (
        *(f"EXISTS (SELECT 1 FROM {table} WHERE job = jobs.id)" for table in ("blocks", "logs", "evidence")),
        "(SELECT count(*) FROM (SELECT 1 FROM attempts WHERE job = jobs.id LIMIT 2)) > 1",
    )
)


class Trimming:
    """Trimming makes the steps of one store."""

    def __init__(self, store: Store, max_bytes: int, keep_days: float) -> None:
        self._store = store
        self._connection = store.connection
        self._full = max_bytes * _FULL
        self._share = max_bytes * _SHARE
        self._keep_seconds = keep_days * SECONDS_OF_A_DAY
        self._rests_until = 0.0

    def step(self) -> bool:
        """Makes one step; returns False where none was due. Raises sqlite3.Error."""
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
        """Returns whether something has to give way."""
        return self._store.used() > self._full

    def _due(self) -> Callable[[], object] | None:
        """Returns what has to be deleted next, whether or not the file is full."""
        old = self._jobs(
            f"SELECT id FROM jobs WHERE coalesce({_OVER}, seen) < ? ORDER BY {_OVER} LIMIT {_JOBS}",
            self._store.now() - self._keep_seconds,
        )
        if old:
            return partial(self._delete_jobs, old)
        large = self._jobs(f"SELECT id FROM jobs WHERE bytes > ? AND ({_HAS_MORE}) LIMIT 1", self._share)
        return partial(self._delete_oldest, large[0]) if large else None

    def _give_way(self) -> Callable[[], object] | None:
        """Returns what of the namespace with most has to be deleted next; None where nothing is recorded."""
        most = self._connection.execute("SELECT name FROM namespaces ORDER BY bytes DESC LIMIT 1").fetchone()
        if most is None:
            return None
        over = f"FROM jobs WHERE namespace = ? AND {_OVER} IS NOT NULL"
        for tables in (("blocks",), ("logs", "evidence")):
            has = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE job = jobs.id)" for table in tables)
            found = self._jobs(f"SELECT id {over} AND ({has}) ORDER BY {_OVER} LIMIT 1", *most)
            if found:
                return partial(self._delete_of, found[0], tables)
        found = self._enough(f"SELECT id, bytes {over} ORDER BY {_OVER} LIMIT {_JOBS}", *most)
        if found:
            return partial(self._delete_jobs, found)
        large = self._jobs(
            f"SELECT id FROM jobs WHERE namespace = ? AND ({_HAS_MORE}) ORDER BY bytes DESC LIMIT 1", *most
        )
        if large:
            return partial(self._delete_oldest, large[0])
        found = self._enough(f"SELECT id, bytes FROM jobs WHERE namespace = ? ORDER BY seen LIMIT {_JOBS}", *most)
        return partial(self._delete_jobs, found)

    def _delete_oldest(self, job: int) -> None:
        """Deletes the oldest of a job that stays: figures by rank, then curves, texts, and attempts but the newest."""
        for kind in ("heat", "curves"):
            deleted = self._connection.execute(
                "DELETE FROM blocks WHERE id IN "
                "(SELECT id FROM blocks WHERE job = ? AND kind = ? ORDER BY last LIMIT ?)",
                (job, kind, _ROWS // 10),
            )
            if deleted.rowcount:
                return
        if not self._delete_of(job, ("evidence", "logs")):
            newest = "(SELECT max(attempt) FROM attempts WHERE job = ?1)"
            self._connection.execute(
                "DELETE FROM attempts WHERE job = ?1 AND attempt IN (SELECT attempt FROM attempts "
                f"WHERE job = ?1 AND attempt < {newest} ORDER BY attempt LIMIT {_ROWS})",
                (job,),
            )

    def _delete_of(self, job: int, tables: Sequence[str]) -> int:
        """Deletes some of a job's rows in the first of these tables that has any; returns their number."""
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
        """Deletes jobs, the first ones first, as far as one step goes."""
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
        """Gives free pages back where they are many, or needed; returns whether it did."""
        free = self._store.pragma("freelist_count")
        is_large = self._store.pragma("page_count") * self._store.pragma("page_size") > self._full
        if not free or (free < _PAGES and not is_large):
            return False
        # A statement gives a page back each time that it is stepped.
        self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        return True

    def _enough(self, statement: str, *values: str) -> list[int]:
        """Returns the first jobs, no more of them than have to go."""
        found, left = [], self._store.used() - self._full
        for job, size in self._connection.execute(statement, values):
            if left <= 0:
                break
            found.append(int(job))
            left -= size
        return found

    def _jobs(self, statement: str, *values: float | str) -> list[int]:
        return [int(job) for (job,) in self._connection.execute(statement, values)]
