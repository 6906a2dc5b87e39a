"""`history.recorder` acknowledges nothing while the disk is full, still answers reads, and continues when it can."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from tests.unit.history.recorded import Answers, job, key, sample
from trainmaster.history.answers import AnswerThreads
from trainmaster.history.recorder import CannotRecord, HistoryMetrics, HistoryRecorder, parse_lines
from trainmaster.history.settings import HistorySettings
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import EvidenceRecord, LogRecord, Record, to_wire

# The times are near now, because the recorder's store uses the real clock.
START = float(int(time.time()) - 100)


def _body(*records: Record) -> bytes:
    return b"\n".join(json.dumps(to_wire(record)).encode() for record in records)


async def _read(readers: AnswerThreads, ask: Callable[[Answers], Any]) -> Any:
    return json.loads((await readers.read(ask))[0])


def _kept_aside(folder: Path) -> int:
    return len(list(folder.glob("*.damaged-*[0-9]")))


@pytest_asyncio.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[HistoryRecorder]:
    found = HistoryRecorder(HistorySettings(file=str(tmp_path / "h.sqlite")), HistoryMetrics(), lambda: None)
    await found.open()
    yield found
    await found.close()


async def test_a_full_disk_is_waited_for(
    recorder: HistoryRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = AnswerThreads(tmp_path / "h.sqlite")
    await recorder.record(_body(job(START), sample(START, step=[1.0, 1.0])))
    store = recorder._store
    pages, most = store.pragma("page_count"), store._most_pages
    # SQLite gives the same error for a disk without room.
    store._most_pages = pages
    monkeypatch.setattr(store, "has_room", lambda _: True)
    large = KeptLog(tuple(f"{number * 7919:x}" for number in range(50_000)))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with pytest.raises(CannotRecord, match="there is no room on its disk"):
                await recorder.record(_body(sample(START + 1, step=[2.0, 2.0]), LogRecord(START, key(), 0, large)))
        found = await _read(readers, lambda answers: answers.job("team", "mine"))
        assert found["attempts"][0]["lastStep"] == 1
        store._most_pages = most
        assert await recorder.record(_body(sample(START + 1, step=[2.0, 2.0]), LogRecord(START, key(), 0, large))) == 2
    found = await _read(readers, lambda answers: answers.job("team", "mine"))
    # The written half of the batch was rolled back, and isn't remembered.
    assert found["attempts"][0]["lastStep"] == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "resumes by itself" in said[0] and said[1] == "Records are written again."
    await readers.close()


async def test_a_file_that_turns_out_to_be_damaged_is_kept_and_begun_anew(tmp_path: Path) -> None:
    file, readers = tmp_path / "h.sqlite", AnswerThreads(tmp_path / "h.sqlite")
    metrics = HistoryMetrics()
    recorder = HistoryRecorder(HistorySettings(file=str(file)), metrics, readers.reopen)
    await recorder.open()
    await recorder.record(_body(job(START)))
    await readers.read(Answers.jobs)
    store = recorder._store
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(file.read_bytes())
    raw[4096 * 2 :] = b"\xff" * (len(raw) - 4096 * 2)
    with file.open("r+b") as opened:
        opened.write(raw)
    # Another connection's write makes this one read the file again.
    store.connection.execute("PRAGMA cache_size = 0")
    await recorder.record(_body(job(START, key("after", "uid-2"))))
    assert _kept_aside(tmp_path) == 1
    assert [item["name"] for item in (await _read(readers, Answers.jobs))["items"]] == ["after"]
    assert b"trainmaster_history_damaged_files_total 1.0" in generate_latest(metrics.registry)
    await readers.close()
    await recorder.close()


async def test_maintenance_goes_on_after_a_failure(recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    tried: list[int] = []

    def step() -> bool:
        tried.append(1)
        if len(tried) == 1:
            raise CannotRecord("full")
        loop.call_soon_threadsafe(done.set)
        return False

    monkeypatch.setattr("trainmaster.history.recorder.FAILED_SECONDS", 0.01)
    recorder._steps = (step,)
    task = asyncio.create_task(recorder.maintain())
    async with asyncio.timeout(5):
        await done.wait()
    task.cancel()


def test_empty_lines_are_no_records() -> None:
    assert list(parse_lines(b"\n\n" + _body(job(START)) + b"\n \n")) == [job(START)]


async def test_a_record_that_cant_be_written_costs_nobody_elses(
    recorder: HistoryRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = _body(job(START, key("hostile", "2"), loss=0.125)).replace(b"0.125", b"1e999")
    body = b"\n".join((_body(job(START, key("first", "1"))), hostile, _body(job(START, key("last", "3")))))
    assert await recorder.record(body) == 2
    assert "A record of JobIdentity(namespace='team', name='hostile', uid='2') is left out (ValueError)" in caplog.text
    # A record that fails because of our own fault is left out too.
    broken = recorder._store._add_job
    monkeypatch.setattr(recorder._store, "_add_job", lambda *given: broken(*given) if given[0].id != 2 else 1 / 0)
    assert (
        await recorder.record(_body(*(job(START + 1, key(name, uid)) for name, uid in (("a", "1"), ("b", "3"))))) == 1
    )
    with Answers(tmp_path / "h.sqlite") as answers:
        assert {item["name"] for item in answers.jobs()["items"]} == {"first", "last"}


async def test_a_status_of_any_shape_is_recorded(recorder: HistoryRecorder) -> None:
    odd = ([], {}, 1, None, True, "x" * 1_000)
    assert (
        await recorder.record(_body(*(job(START, key(str(n), str(n)), phase=phase) for n, phase in enumerate(odd))))
        == 6
    )


@pytest.mark.parametrize("with_others", [False, True], ids=["the file", "with what is beside it"])
async def test_a_file_that_is_deleted_in_use_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_others: bool
) -> None:
    """Acknowledged records used to go into a file that nobody could open any more."""
    file, metrics = tmp_path / "made" / "h.sqlite", HistoryMetrics()
    readers = AnswerThreads(file)
    recorder = HistoryRecorder(HistorySettings(file=str(file)), metrics, readers.reopen)
    file.parent.mkdir()
    await recorder.open()
    await recorder.record(_body(job(START)))
    await _read(readers, Answers.jobs)
    for path in file.parent.iterdir() if with_others else [file]:
        path.unlink()
    await recorder.record(_body(job(START, key("after", "uid-2"))))
    assert {item["name"] for item in (await _read(readers, Answers.jobs))["items"]} == {"mine", "after"}
    assert "was deleted, and is restored whole" in caplog.text and file.stat().st_mode & 0o077 == 0
    assert b"trainmaster_history_lost_files_total 1.0" in generate_latest(metrics.registry)
    # This also works if nobody writes.
    file.unlink()
    await recorder._run(recorder._step)
    assert file.exists()
    await readers.close()
    await recorder.close()
    with Answers(file) as answers:
        assert answers.count() == 2


async def test_a_deleted_file_that_cant_be_restored_is_begun_anew(
    recorder: HistoryRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    await recorder.record(_body(job(START)))
    monkeypatch.setattr(recorder._store, "restore", no_room)
    (tmp_path / "h.sqlite").unlink()
    assert await recorder.record(_body(job(START, key("after", "uid-2")))) == 1
    assert "can't be restored (database or disk is full): a new history is begun" in caplog.text
    with Answers(tmp_path / "h.sqlite") as answers:
        assert [item["name"] for item in answers.jobs()["items"]] == ["after"]


async def test_a_file_that_is_replaced_in_use_is_used(
    recorder: HistoryRecorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = HistoryRecorder(HistorySettings(file=str(tmp_path / "copy.sqlite")), HistoryMetrics(), lambda: None)
    await other.open()
    await other.record(_body(job(START, key("restored", "uid-9"))))
    await other.close()
    await recorder.record(_body(job(START)))
    (tmp_path / "copy.sqlite").rename(tmp_path / "h.sqlite")
    await recorder.record(_body(job(START, key("after", "uid-2"))))
    assert "was replaced by another file" in caplog.text
    with Answers(tmp_path / "h.sqlite") as answers:
        assert {item["name"] for item in answers.jobs()["items"]} == {"restored", "after"}


async def test_a_flood_of_attempts_doesnt_make_the_file_larger_than_its_bound(tmp_path: Path) -> None:
    """A file of 16 Mi grew to 42 Mi, because attempts' data wasn't counted, and trimming was slower than the flood."""
    most, chance = 3 * 1024 * 1024, random.Random(6)
    file = tmp_path / "h.sqlite"
    recorder = HistoryRecorder(HistorySettings(file=str(file), max_bytes=most), HistoryMetrics(), lambda: None)
    await recorder.open()
    good = key("good", "good", "good")
    await recorder.record(_body(job(START, good, phase="Running"), LogRecord(START, good, 0, KeptLog(("kept",)))))
    sizes = []
    for number in range(40):
        of = key(f"job-{number}", f"uid-{number}", "hostile")
        failures = [
            {"attempt": attempt, "reason": "Error", "message": chance.randbytes(6_000).hex()} for attempt in range(9)
        ]
        at_once = [_body(job(START, of, failures=failures)), _body(LogRecord(START, of, 1, _incompressible(chance)))]
        assert await asyncio.gather(*map(recorder.record, at_once)) == [1, 1]
        sizes.append(file.stat().st_size)
    # A record larger than the whole file is left out, but no other is.
    huge = EvidenceRecord(START, good, 1, json.dumps({"lines": chance.randbytes(3_000_000).hex()}))
    assert await recorder.record(_body(huge)) == 0
    assert max(sizes) <= most
    await recorder.close()
    assert file.stat().st_size <= most
    with Answers(file) as answers:
        assert answers.logs("good", "good")["items"][0]["lines"] == ["kept"]
        assert answers.jobs("hostile")["items"]


def _incompressible(chance: random.Random, size: int = 100_000) -> KeptLog:
    return KeptLog((chance.randbytes(size // 2).hex(),))
