"""Writes records into the file. A batch is one transaction, and a repeated batch changes nothing.

`recorder` calls all methods in one thread. `tail` contains the newest samples, which `upkeep` packs into blocks.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from trainmaster.history.figures import decompress, figures_of, step_of, system_to_tail, to_tail
from trainmaster.history.names import MORE_METRICS, kept_metrics
from trainmaster.history.schema import files_of, open_file
from trainmaster.history.statuses import (
    Attempt,
    merge_workers,
    observe,
    oldest_failure,
    status_figures,
    summary,
)
from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog
from trainmaster_operator.api.records import (
    DeletedRecord,
    EvidenceRecord,
    JobRecord,
    LogRecord,
    PodPlace,
    Record,
    SampleRecord,
    SystemRecord,
)
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.wire.values import mapping

Result = TypeVar("Result")

# Number of slices of the tail. Each contains the samples of some jobs, which are read, packed and deleted together.
SLICES = 32
# Maximum number of one job's attempts, attempts with workers, and pieces of evidence. The oldest are deleted.
MAX_ATTEMPTS, MAX_WITH_WORKERS, MAX_EVIDENCE = 500, 100, 20
# The share of the file's maximum size that records may fill. The space that suffices for a batch: this many pages,
# plus this multiple of the size of the batch's JSON.
_OF_RECORDS, _LEAST_PAGES, _MOST_TIMES = 0.97, 32, 4
# SQLite's own limit on the pages of a file.
MOST_PAGES = 2**32 - 2
# Maximum seconds by which the operator's clock may be ahead of this one.
_CLOCK_SECONDS = 60.0
# Number of cached jobs, so that a sample needs no query.
_REMEMBERED_JOBS = 20_000


@dataclass
class _KnownJob:
    """_KnownJob is the data that the store caches for one job."""

    id: int
    sampled_at: float
    # The figures of the job's newest status.
    figures: Mapping[str, float] = field(default_factory=dict)
    # The names of the job's figures. The empty name means that there are more metrics than are kept.
    names: set[str] = field(default_factory=set)
    system_at: float = 0.0


@dataclass
class Slice:
    """Slice describes a slice of the tail: the time of its first row (monotonic seconds), and its approximate bytes."""

    since: float
    bytes: int = 0


def _created(record: JobRecord) -> float | None:
    return to_seconds(str(mapping(record.job.get("metadata")).get("creationTimestamp")))


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def slice_of(job: int) -> int:
    """Returns the number of the slice that contains a job's samples."""
    return job % SLICES


class HistoryStore:
    """HistoryStore writes the file, which it keeps open."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        """Opens the file. Raises UnusableHistory."""
        self.file = file
        self.now = now
        self.connection = open_file(file)
        self._known: dict[str, _KnownJob] = {}
        self._most_pages = MOST_PAGES
        started = time.monotonic()
        rows = self._execute("SELECT DISTINCT slice FROM tail")
        self.tail: dict[int, Slice] = {number: Slice(started) for (number,) in rows}
        self._identities = {path: _identity(path) for path in files_of(file)}

    def close(self) -> None:
        """Moves all data from the write-ahead log into the file, and closes it. Waits at most 0.5 s for readers."""
        self.connection.execute("PRAGMA busy_timeout = 500")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.connection.close()

    def is_lost(self) -> bool:
        """Returns whether the file was deleted or replaced, in which case new data would be lost."""
        return _identity(self.file) != self._identities[self.file]

    def restore(self) -> None:
        """Restores a deleted file from this connection, which keeps it open. Raises sqlite3.Error and OSError."""
        self.file.parent.mkdir(0o700, parents=True, exist_ok=True)
        beside = self.file.with_name(f"{self.file.name}.restoring")
        beside.unlink(missing_ok=True)
        try:
            self._execute("VACUUM INTO ?", str(beside))
            beside.chmod(0o600)
            beside.rename(self.file)
        finally:
            beside.unlink(missing_ok=True)

    def drop_beside(self) -> None:
        """Deletes SQLite's files beside a missing file, because SQLite would use them for the next file."""
        for path in files_of(self.file)[1:]:
            if _identity(path) == self._identities[path]:
                path.unlink(missing_ok=True)

    def write(self, change: Callable[[], Result]) -> Result:
        """Calls `change` in one transaction, and returns its result. Raises sqlite3.Error."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            found = change()
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            # The rollback may have undone cached values.
            self.forget()
            raise
        return found

    def forget(self, job: int | None = None) -> None:
        """Drops the cached data of one job or of all, so that it is read again."""
        if job is not None:
            self._known = {uid: known for uid, known in self._known.items() if known.id != job}
        else:
            self._known.clear()

    def bound(self, max_bytes: int) -> None:
        """Limits the file's size. A batch that would make the file larger fails with SQLITE_FULL."""
        self._most_pages = max_bytes // self.pragma("page_size")

    def used(self) -> int:
        """Returns the file's size without its free pages, in bytes."""
        return (self.pragma("page_count") - self.pragma("freelist_count")) * self.pragma("page_size")

    def has_room(self, size: int) -> bool:
        """Returns whether records with `size` bytes of JSON certainly fit below the maximum size."""
        free = int(self._most_pages * _OF_RECORDS) - self.used() // self.pragma("page_size")
        return free > _LEAST_PAGES + _MOST_TIMES * size // self.pragma("page_size")

    def pragma(self, name: str) -> int:
        """Returns the value of one of SQLite's pragmas."""
        return int(self._execute(f"PRAGMA {name}").fetchone()[0])

    def record(self, records: Iterable[Record]) -> Counter[str]:
        """Writes a batch, and returns its number of records of each kind.

        Raises sqlite3.Error, the errors of `records`, and ValueError for a job that isn't JSON.
        """
        # Some room is reserved, because deleting data needs room too.
        self._execute(f"PRAGMA max_page_count = {int(self._most_pages * _OF_RECORDS)}")
        try:
            return self.write(lambda: self._record(records))
        finally:
            self._execute(f"PRAGMA max_page_count = {self._most_pages}")

    def _record(self, records: Iterable[Record]) -> Counter[str]:
        rows, kinds = [], Counter[str]()
        for record in records:
            kinds[record.kind] += 1
            known = self._job(record)
            match record:
                case JobRecord():
                    self._add_job(known, record)
                case DeletedRecord():
                    self._execute(
                        "UPDATE jobs SET deleted = min(coalesce(deleted, ?2), ?2), seen = max(seen, ?2) WHERE id = ?1",
                        *(known.id, record.at),
                    )
                case SampleRecord():
                    # If a sample's time were far in the future, all later samples would seem old and be ignored.
                    at = round(min(record.at, self.now() + _CLOCK_SECONDS), 3)
                    if at > known.sampled_at:
                        known.sampled_at = at
                        text = to_tail(self._with_kept_metrics(known, record), known.figures)
                        rows.append((slice_of(known.id), known.id, at, text))
                        self._add_step(known, record)
                case SystemRecord():
                    at = round(min(record.at, self.now() + _CLOCK_SECONDS), 3)
                    if at > known.system_at:
                        known.system_at = at
                        rows.append((slice_of(known.id), known.id, at, system_to_tail(record)))
                        self._add_names(known, record.columns)
                case EvidenceRecord():
                    self._add_blob("evidence", known, record.attempt, record.evidence)
                    self._keep_newest("evidence", "key", known, MAX_EVIDENCE)
                case LogRecord():
                    self._add_log(known, record.worker, record.log)
        following = "SELECT coalesce(max(id), 0) + 1 FROM tail WHERE slice = ?1"
        self.connection.executemany(
            f"INSERT INTO tail (slice, id, job, at, data) VALUES (?1, ({following}), ?2, ?3, ?4)", rows
        )
        started = time.monotonic()
        for number, *_, text in rows:
            self.tail.setdefault(number, Slice(started)).bytes += len(text)
        return kinds

    def _job(self, record: Record) -> _KnownJob:
        """Returns the cached data of a record's job, and adds the job if it is new."""
        key = record.key
        known = self._known.get(key.uid)
        if known is None:
            if len(self._known) >= _REMEMBERED_JOBS:
                self._known.clear()
            known = self._known[key.uid] = self._find(key) or self._new_job(key, record)
        return known

    def _find(self, key: JobIdentity) -> _KnownJob | None:
        found = self._execute("SELECT id FROM jobs WHERE uid = ?", key.uid).fetchone()
        if found is None:
            return None
        (job,) = found
        newest = self._execute(
            "SELECT max(coalesce((SELECT max(last) FROM blocks WHERE job = ?1), 0), "
            "coalesce((SELECT max(at) FROM tail WHERE slice = ?2 AND job = ?1), 0))",
            *(job, slice_of(job)),
        ).fetchone()[0]
        data = self._execute("SELECT data FROM objects WHERE job = ?", job).fetchone()
        figures = {} if data is None else status_figures(json.loads(decompress(data[0])))
        names = {name for (name,) in self._execute("SELECT name FROM metrics WHERE job = ?", job)}
        return _KnownJob(job, newest, figures, names, newest)

    def _new_job(self, key: JobIdentity, record: Record) -> _KnownJob:
        # Until the job's own record arrives, its first sample's time is used.
        created = (_created(record) if isinstance(record, JobRecord) else None) or record.at
        # Only one job at a time can have a name. If the file has an earlier job of this name, its deletion was missed.
        self._execute(
            "UPDATE jobs INDEXED BY jobs_alive SET deleted = max(?1, seen) "
            "WHERE namespace = ?2 AND name = ?3 AND deleted IS NULL AND created <= ?1",
            *(created, key.namespace, key.name),
        )
        inserted = self._execute(
            "INSERT INTO jobs (uid, namespace, name, created, seen, summary) VALUES (?, ?, ?, ?, ?, ?)",
            *(key.uid, key.namespace, key.name, created, record.at, json.dumps(summary({}))),
        )
        return _KnownJob(int(inserted.lastrowid or 0), 0.0)

    def _add_job(self, known: _KnownJob, record: JobRecord) -> None:
        status = mapping(record.job.get("status"))
        known.figures = status_figures(record.job)
        found = summary(record.job)
        self._execute(
            "UPDATE jobs SET created = coalesce(?5, created), seen = max(seen, ?2), ended = ?3, summary = ?4 "
            "WHERE id = ?1",
            *(known.id, record.at, to_seconds(found["endedAt"]), json.dumps(found), _created(record)),
        )
        statement = "INSERT INTO objects VALUES (?, ?) ON CONFLICT DO UPDATE SET data = excluded.data"
        self._execute(statement, known.id, _packed(dict(record.job)))
        since = min(oldest_failure(status), found["attempt"])
        rows = self._execute("SELECT attempt, data FROM attempts WHERE job = ? AND attempt >= ?", known.id, since)
        attempts = {attempt: Attempt(**json.loads(text)) for attempt, text in rows}
        changed = observe(status, attempts, record.at)
        for attempt, new in changed.items():
            self._execute(
                "INSERT INTO attempts (job, attempt, data) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET data = excluded.data",
                *(known.id, attempt, json.dumps(new.to_json())),
            )
        if changed.keys() - attempts:
            self._keep_newest("attempts", "attempt", known, MAX_ATTEMPTS)
            self._execute(
                "UPDATE attempts SET workers = NULL WHERE job = ? AND attempt = ?",
                *(known.id, max(changed) - MAX_WITH_WORKERS),
            )
        current = changed.get(found["attempt"]) or attempts.get(found["attempt"])
        # Pods that appear after the attempt's end belong to the next attempt.
        if record.pods and current is not None and not current.is_over:
            self._add_workers(known, found["attempt"], record.pods)

    def _add_workers(self, known: _KnownJob, attempt: int, pods: Sequence[PodPlace]) -> None:
        (data,) = self._execute(
            "SELECT workers FROM attempts WHERE job = ? AND attempt = ?", known.id, attempt
        ).fetchone()
        old = {} if data is None else workers_of(data)
        new = merge_workers(old, pods)
        if new != old:
            packed = _packed([[place.worker, place.pod, place.node] for _, place in sorted(new.items())])
            self._execute("UPDATE attempts SET workers = ? WHERE job = ? AND attempt = ?", packed, known.id, attempt)

    def _with_kept_metrics(self, known: _KnownJob, record: SampleRecord) -> SampleRecord:
        """Returns a sample without the metrics for which the job has too many names, and records its figures' names."""
        kept = kept_metrics(known.names, record.metrics)
        self._add_names(known, {*figures_of(record), *known.figures, *kept})
        if len(kept) < len(record.metrics):
            self._add_names(known, [MORE_METRICS])
        return replace(record, metrics=kept)

    def _add_names(self, known: _KnownJob, names: Iterable[str]) -> None:
        new = set(names) - known.names
        self.connection.executemany("INSERT INTO metrics VALUES (?, ?)", [(known.id, name) for name in sorted(new)])
        known.names |= new

    def _add_step(self, known: _KnownJob, record: SampleRecord) -> None:
        step = step_of(record)
        if step is not None:
            self._execute(
                "INSERT INTO attempts (job, attempt, first_step, last_step) VALUES (?1, ?2, ?3, ?3) ON CONFLICT "
                "DO UPDATE SET first_step = min(coalesce(first_step, ?3), ?3), "
                "last_step = max(coalesce(last_step, ?3), ?3)",
                *(known.id, record.attempt, step),
            )

    def _add_log(self, known: _KnownJob, worker: int, log: KeptLog) -> None:
        """Appends a log to the recorded log of the worker's earlier pods."""
        row = self._execute("SELECT data FROM logs WHERE job = ? AND key = ?", known.id, worker).fetchone()
        before = None if row is None else KeptLog.parse(json.loads(decompress(row[0])), worker)
        both = log if before is None else before.continued(log)
        self._add_blob("logs", known, worker, json.dumps(both.ending(LONGEST_LOG).to_data(worker)))

    def _add_blob(self, table: str, known: _KnownJob, key: int, text: str) -> None:
        self._execute(
            f"INSERT INTO {table} (job, key, data) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET data = excluded.data",
            *(known.id, key, zlib.compress(text.encode("utf-8", "replace"))),
        )

    def _keep_newest(self, table: str, key: str, known: _KnownJob, most: int) -> None:
        """Deletes all of a job's rows in a table except the `most` rows with the highest keys."""
        self._execute(
            f"DELETE FROM {table} WHERE job = ?1 AND {key} <= "
            f"(SELECT {key} FROM {table} WHERE job = ?1 ORDER BY {key} DESC LIMIT 1 OFFSET ?2)",
            *(known.id, most),
        )

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def workers_of(data: bytes) -> dict[int, PodPlace]:
    """Returns the pod and node of each worker of an attempt."""
    return {worker: PodPlace(worker, pod, node) for worker, pod, node in json.loads(decompress(data))}
