"""Opens the file, creates its tables, and moves a damaged file aside.

The history is one SQLite file in WAL mode. A commit is on the disk when it is acknowledged (synchronous=FULL), so
neither a kill nor a power cut loses it. There is one writer, which commits once for a batch, so syncing costs little.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

# Bytes that a row takes besides its texts: other columns, entries in indexes, and unused room in pages. With them, the
# sum of all jobs' `bytes` differs from the file's size by at most a fifth (tests/unit/history/test_books.py).
_OF_A_ROW = {"jobs": 700, "objects": 60, "attempts": 100, "blocks": 140, "evidence": 60, "logs": 60, "metrics": 20}
_TEXTS = {"jobs": ("summary",), "attempts": ("data", "workers"), "metrics": ("name",)}


def _bytes_of(table: str, row: str) -> str:
    """Returns SQL for the bytes of the row OLD or NEW. It assumes that pages are nine tenths full."""
    texts = " + ".join(f"coalesce(length({row}.{name}), 0)" for name in _TEXTS.get(table, ("data",)))
    return f"({_OF_A_ROW[table]} + ({texts}) * 10 / 9)"


def _books(table: str) -> str:
    job, new, old = "id" if table == "jobs" else "job", _bytes_of(table, "NEW"), _bytes_of(table, "OLD")
    changed = ", ".join(_TEXTS.get(table, ("data",)))
    changes = {"added AFTER INSERT": f"+ {new}", f"changed AFTER UPDATE OF {changed}": f"+ {new} - {old}"}
    if table != "jobs":
        changes["removed AFTER DELETE"] = f"- {old}"
    return "".join(
        f"CREATE TRIGGER {table}_{when} ON {table} BEGIN "
        f"UPDATE jobs SET bytes = bytes {change} WHERE id = {'OLD' if 'DELETE' in when else 'NEW'}.{job}; END;\n"
        for when, change in changes.items()
    )


TABLES = """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, namespace TEXT NOT NULL, name TEXT NOT NULL,
        created REAL NOT NULL, seen REAL NOT NULL, ended REAL, deleted REAL, summary TEXT NOT NULL,
        bytes INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX jobs_by_name ON jobs (namespace, name, created);
    CREATE INDEX jobs_by_created ON jobs (created);
    CREATE INDEX jobs_alive ON jobs (namespace, name) WHERE deleted IS NULL;
    CREATE INDEX jobs_over ON jobs (namespace, coalesce(deleted, ended)) WHERE coalesce(deleted, ended) IS NOT NULL;
    CREATE TABLE namespaces (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE objects (job INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE attempts (
        job INTEGER NOT NULL, attempt INTEGER NOT NULL, data TEXT NOT NULL DEFAULT '{}', workers BLOB,
        first_step INTEGER, last_step INTEGER, PRIMARY KEY (job, attempt)
    );
    CREATE TABLE evidence (job INTEGER NOT NULL, key INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (job, key));
    CREATE TABLE logs (job INTEGER NOT NULL, key INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (job, key));
    CREATE TABLE metrics (job INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (job, name)) WITHOUT ROWID;
    CREATE TABLE tail (
        slice INTEGER NOT NULL, id INTEGER NOT NULL, job INTEGER NOT NULL, at REAL NOT NULL, data TEXT NOT NULL,
        PRIMARY KEY (slice, id)
    ) WITHOUT ROWID;
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL, kind TEXT NOT NULL, level INTEGER NOT NULL,
        first REAL NOT NULL, last REAL NOT NULL, points INTEGER NOT NULL, ranks INTEGER NOT NULL, data BLOB NOT NULL
    );
    CREATE INDEX blocks_in_order ON blocks (job, kind, level, first, last, points, ranks);
    CREATE TRIGGER jobs_counted AFTER UPDATE OF bytes ON jobs BEGIN
        INSERT INTO namespaces VALUES (NEW.namespace, NEW.bytes - OLD.bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes; END;
    CREATE TRIGGER jobs_removed AFTER DELETE ON jobs BEGIN
        UPDATE namespaces SET bytes = bytes - OLD.bytes WHERE name = OLD.namespace;
        DELETE FROM namespaces WHERE name = OLD.namespace AND bytes <= 0; END;
    """ + "".join(map(_books, _OF_A_ROW))
# The version of the tables. A file with another version is refused.
VERSION = 2
# "TMhi" distinguishes our files from other programs' files. `file` and SQLite's tools show it.
APPLICATION_ID = 0x544D6869
_DAMAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The first bytes of every SQLite file.
_BEGINNING = b"SQLite format 3\0"
# Milliseconds that a connection waits for a lock. In WAL mode, readers and the writer don't block each other.
_BUSY_MILLISECONDS = 5_000
# Permissions of new folders and files, which contain the jobs and logs of all namespaces.
_OWNERS_FOLDER, _OWNERS_FILE = 0o700, 0o600


class UnusableHistory(Exception):
    """The file can't be used. The message states the reason and the remedy."""


def is_damage(error: sqlite3.Error) -> bool:
    """Returns whether an error means that the file is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGES


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Locks the file for this process during the block. Raises UnusableHistory."""
    try:
        file.parent.mkdir(_OWNERS_FOLDER, parents=True, exist_ok=True)
        with file.with_name(f"{file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise UnusableHistory(f"{file} is in use by another `trainmaster history serve`; stop it first.") from error
    except OSError as error:
        raise UnusableHistory(f"{file} can't be used: {error.strerror}; is its folder there and writable?") from error


def open_file(file: Path) -> sqlite3.Connection:
    """Opens the file for writing, and moves a damaged file aside. Raises UnusableHistory."""
    try:
        return _open(file)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise UnusableHistory(f"{file} can't be used: {error}.") from error
        # A damaged history begins like a database, or with zeros if its first page is lost. Other files are left alone.
        with file.open("rb") as opened:
            beginning = opened.read(len(_BEGINNING))
        if beginning != _BEGINNING and beginning.strip(b"\0"):
            raise UnusableHistory(
                f"{file} is no history but another kind of file, and is left alone; name another, or move it away."
            ) from error
        move_aside(file, error)
        return _open(file)


def files_of(file: Path) -> list[Path]:
    """Returns the paths of a history's file, its write-ahead log, and that log's index (shared memory)."""
    return [file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm")]


def move_aside(file: Path, error: sqlite3.Error) -> None:
    """Renames SQLite's files beside a damaged file, then the file itself."""
    aside = file.with_name(f"{file.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
    for part, new in zip(reversed(files_of(file)), reversed(files_of(aside)), strict=True):
        if part.exists():
            part.rename(new)
    kept = f"it is kept as {aside}, and a new one is begun. `sqlite3 {aside} .recover` may read its rest"
    log.error("%s is damaged (%s): %s.", file, error, kept)


def open_to_read(file: Path) -> sqlite3.Connection:
    """Opens a history read-only, while another connection may be writing it. Raises UnusableHistory."""
    if not file.is_file():
        raise UnusableHistory(f"{file} isn't there; name the file of a history.")
    try:
        connection = sqlite3.connect(
            f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        if not _require_ours(connection, file):
            raise UnusableHistory(f"{file} is empty; name the file of a history.")
    except sqlite3.Error as error:
        raise UnusableHistory(f"{file} can't be read: {error}.") from error
    return connection


def _open(file: Path) -> sqlite3.Connection:
    # If the write-ahead log exists, the file wasn't closed, so the whole file is checked.
    was_clean = not files_of(file)[1].exists()
    # This creates the file for its owner only. SQLite gives the files that it creates beside it the same permissions.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, _OWNERS_FILE))
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        # The history never writes to another program's file.
        version = _require_ours(connection, file)
        if version == 0:
            # Blocks of 1.5 kB would leave a third of SQLite's default pages (4,096 bytes) empty, but leave only a tenth
            # of these pages empty.
            connection.execute("PRAGMA page_size = 8192")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        if not was_clean:
            problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            if problem != "ok":
                damage = sqlite3.DatabaseError(" ".join(problem.split()))
                damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damage
        if version == 0:
            connection.executescript(
                f"BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _require_ours(connection: sqlite3.Connection, file: Path) -> int:
    """Returns the version of the tables; 0 if the file has no tables. Raises UnusableHistory."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise UnusableHistory(f"{file} is no history of Trainmaster but another program's database; name another file.")
    if version not in (0, VERSION):
        raise UnusableHistory(
            f"{file} was written by another release (tables of version {version}, this one has version {VERSION}); "
            "use that release, or name another file."
        )
    return int(version)
