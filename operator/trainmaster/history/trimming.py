"""The file stays below its bytes, and jobs go when they are old: what goes first is what is missed least.

Over the bytes, the namespace that has most gives way, so that one that makes jobs without end takes nothing from the
others: the oldest ended job's figures by rank and curves go, then the oldest one's logs and evidence, then the oldest
one whole; jobs that run lose their oldest figures last. No job has more than a share of the file, whatever
comes of it, so that one of thousands of ranks or attempts takes nothing from the others. Each step is small, and gives
its pages back to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from trainmaster.history.settings import SECONDS_OF_A_DAY
from trainmaster.history.store import Store, slice_of

# A job's share of the file, and the part of the file that may be full: the write-ahead log and what is being moved
# need the rest.
_SHARE, _FULL = 1 / 16, 0.9
# Rows that one step deletes; pages that it gives back.
_ROWS, _PAGES = 100, 2_000
# Seconds between two looks: each goes through all jobs.
_REST_SECONDS = 5.0
# Tables with rows of jobs beside `jobs` and `tail`, in the order in which a whole job goes.
_TABLES = ("blocks", "evidence", "logs", "attempts", "objects")
_ENDED = "coalesce(deleted, ended)"
_HAS_FIGURES = "EXISTS (SELECT 1 FROM blocks WHERE job = jobs.id)"
_HAS_TEXTS = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE job = jobs.id)" for table in ("logs", "evidence"))
# What a job costs beside what is counted in its `bytes`: its row, and those of its attempts.
_ROW_BYTES = 2_048


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
        if time.monotonic() < self._rests_until:
            return False
        change = self._due()
        if change is not None:
            self._store.write(change)
        if self._give_back() or change is not None:
            return True
        self._rests_until = time.monotonic() + _REST_SECONDS
        return False

    def used(self) -> int:
        """Returns the bytes of the file that aren't free."""
        pages, free, size = (self._pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * size

    def _due(self) -> Callable[[], object] | None:
        """Returns what has to be deleted next."""
        old = self._first(
            f"SELECT id FROM jobs WHERE coalesce({_ENDED}, seen) < ? ORDER BY {_ENDED} LIMIT 1",
            self._store.now() - self._keep_seconds,
        )
        if old is not None:
            return partial(self._delete_job, old)
        large = self._first(f"SELECT id FROM jobs WHERE bytes > ? AND ({_HAS_FIGURES} OR {_HAS_TEXTS})", self._share)
        if large is not None:
            return partial(self._delete_oldest, large)
        if self.used() <= self._full:
            return None
        most = self._connection.execute(
            f"SELECT namespace FROM jobs GROUP BY namespace ORDER BY sum(bytes + {_ROW_BYTES}) DESC LIMIT 1"
        ).fetchone()
        # Where all of it is of jobs that run, and too little to go on with, the others have to give way too.
        return (self._least_missed("namespace = ?", *most) if most else None) or self._least_missed("1")

    def _least_missed(self, where: str, *values: str) -> Callable[[], object] | None:
        """Returns what has to be deleted next of some jobs."""
        ended = f"SELECT id FROM jobs WHERE {where} AND {_ENDED} IS NOT NULL"
        for tables, has in ((("blocks",), _HAS_FIGURES), (("logs", "evidence"), _HAS_TEXTS)):
            job = self._first(f"{ended} AND ({has}) ORDER BY {_ENDED} LIMIT 1", *values)
            if job is not None:
                return partial(self._delete_of, job, tables)
        job = self._first(f"{ended} ORDER BY {_ENDED} LIMIT 1", *values)
        if job is not None:
            return partial(self._delete_job, job)
        large = self._first(
            f"SELECT id FROM jobs WHERE {where} AND ({_HAS_FIGURES} OR {_HAS_TEXTS}) ORDER BY bytes DESC LIMIT 1",
            *values,
        )
        return None if large is None else partial(self._delete_oldest, large)

    def _delete_oldest(self, job: int) -> None:
        """Deletes what a job that is too large has the longest: figures by rank, then curves, then the rest."""
        for kind in ("heat", "curves"):
            deleted = self._connection.execute(
                "DELETE FROM blocks WHERE id IN "
                "(SELECT id FROM blocks WHERE job = ? AND kind = ? ORDER BY last LIMIT ?)",
                (job, kind, _ROWS // 10),
            )
            if deleted.rowcount:
                return
        self._delete_of(job, ("evidence", "logs"))

    def _delete_of(self, job: int, tables: tuple[str, ...]) -> bool:
        """Deletes some of a job's rows in the first of these tables that has any; returns whether one had."""
        for table in tables:
            key = {"blocks": "id", "attempts": "attempt", "objects": "job"}.get(table, "key")
            deleted = self._connection.execute(
                f"DELETE FROM {table} WHERE job = ?1 AND {key} IN "
                f"(SELECT {key} FROM {table} WHERE job = ?1 ORDER BY {key} LIMIT {_ROWS})",
                (job,),
            )
            if deleted.rowcount:
                return True
        return False

    def _delete_job(self, job: int) -> None:
        """Deletes some of a job, and it where nothing of it is left."""
        if self._delete_of(job, _TABLES):
            return
        self._connection.execute("DELETE FROM tail WHERE slice = ? AND job = ?", (slice_of(job), job))
        self._connection.execute("DELETE FROM jobs WHERE id = ?", (job,))
        self._store.forget(job)

    def _give_back(self) -> bool:
        """Gives free pages back where they are many, or needed; returns whether it did."""
        free = self._pragma("freelist_count")
        is_large = self._pragma("page_count") * self._pragma("page_size") > self._full
        if not free or (free < _PAGES and not is_large):
            return False
        # A statement gives a page back each time that it is stepped.
        self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        return True

    def _first(self, statement: str, *values: float | str) -> int | None:
        found = self._connection.execute(statement, values).fetchone()
        return None if found is None else int(found[0])

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
