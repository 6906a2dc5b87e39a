"""`history.schema` opens a file, keeps a damaged one aside, and leaves other programs' files alone."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Answers, Recorded, job
from trainmaster.history.schema import VERSION, UnusableHistory, locked, open_file, open_to_read


def test_a_new_file_gives_pages_back_and_is_safe_from_power_cuts(tmp_path: Path) -> None:
    connection = open_file(tmp_path / "h.sqlite")
    pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    connection.close()


def test_nobody_else_on_the_machine_reads_it(tmp_path: Path) -> None:
    file, before = tmp_path / "made" / "h.sqlite", os.umask(0o022)
    try:
        with locked(file):
            connection = open_file(file)
            connection.execute("CREATE TABLE more (a)")
            modes = {path.name: path.stat().st_mode & 0o077 for path in (file.parent, *file.parent.glob("h.sqlite*"))}
            connection.close()
    finally:
        os.umask(before)
    assert modes.pop("h.sqlite.lock") == 0o044  # It is empty.
    assert modes == dict.fromkeys(("made", "h.sqlite", "h.sqlite-wal", "h.sqlite-shm"), 0)


@pytest.mark.parametrize("damage", ["zeros", "a page", "half"])
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(tmp_path)
    recorded.store.record([job(START)])
    recorded.store.close()
    raw = recorded.file.read_bytes()
    broken = {
        "zeros": bytes(100) + raw[100:],
        "a page": raw[:4096] + b"\xff" * 8192 + raw[12288:],
        "half": raw[: len(raw) // 2],
    }[damage]
    recorded.file.write_bytes(broken)
    # The file looks as after a kill, so it is checked.
    (tmp_path / "history.sqlite-wal").touch()
    with caplog.at_level(logging.ERROR):
        Recorded(tmp_path).store.close()
    [aside] = tmp_path.glob("history.sqlite.damaged-*[0-9]")
    assert aside.read_bytes() == broken
    assert "is damaged" in caplog.text and aside.name in caplog.text
    with Answers(recorded.file) as answers:
        assert answers.jobs()["items"] == []


def test_a_file_of_another_release_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    connection = open_file(file)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = file.read_bytes()
    for use in (open_file, open_to_read):
        with pytest.raises(
            UnusableHistory, match=rf"was written by another release \(tables of version {VERSION + 1}, "
        ):
            use(file)
    assert file.read_bytes() == before


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    for use in (open_file, open_to_read):
        with pytest.raises(UnusableHistory, match="is no history of Trainmaster but another program's database"):
            use(file)


def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("somebody's notes, " * 500)
    with pytest.raises(UnusableHistory, match=r"notes\.txt is no history but another kind of file, and is left alone"):
        open_file(file)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert file.read_text() == "somebody's notes, " * 500


def test_a_file_is_one_processs(tmp_path: Path) -> None:
    file = tmp_path / "new" / "h.sqlite"
    with (
        locked(file),
        pytest.raises(UnusableHistory, match="is in use by another `trainmaster history serve`"),
        locked(file),
    ):
        pass
    with locked(file):
        pass
    (tmp_path / "plain").touch()
    with pytest.raises(UnusableHistory, match="can't be used: Not a directory"), locked(tmp_path / "plain/x/h.sqlite"):
        pass


def test_a_file_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableHistory, match="isn't there; name the file of a history"):
        open_to_read(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(UnusableHistory, match="empty is empty; name the file of a history"):
        open_to_read(tmp_path / "empty")
    (tmp_path / "text").write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(UnusableHistory, match="can't be read: file is not a database"):
        open_to_read(tmp_path / "text")
