"""`history.recorder`: on a full disk nothing is acknowledged, what there is can be read, and it goes on when it can."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.unit.history.recorded import job, key, sample
from trainmaster.api.kept_logs import KeptLog
from trainmaster.api.records import LogRecord, Record, to_wire
from trainmaster.history.answers import Answers
from trainmaster.history.metrics import HistoryMetrics
from trainmaster.history.reading import Readers
from trainmaster.history.recorder import CannotRecord, Recorder, parse_lines
from trainmaster.history.settings import HistorySettings

# Of now: the store that the recorder opens has the real clock.
START = float(int(time.time()) - 100)


def _body(*records: Record) -> bytes:
    return b"\n".join(json.dumps(to_wire(record)).encode() for record in records)


def _kept_aside(folder: Path) -> int:
    return len(list(folder.glob("*.damaged-*[0-9]")))


@pytest_asyncio.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[Recorder]:
    found = Recorder(HistorySettings(file=str(tmp_path / "h.sqlite")), HistoryMetrics(), lambda: None)
    await found.open()
    yield found
    await found.close()


async def test_a_full_disk_is_waited_for(recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    readers = Readers(tmp_path / "h.sqlite")
    await recorder.record(_body(job(START), sample(START, step=[1.0, 1.0])))
    connection = recorder._store.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    # As a disk that has no room for more; SQLite answers the same error.
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = KeptLog(tuple(f"{number * 7919:x}" for number in range(50_000)))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with pytest.raises(CannotRecord, match="there is no room on its disk"):
                await recorder.record(_body(sample(START + 1, step=[2.0, 2.0]), LogRecord(START, key(), 0, large)))
        found = json.loads(await readers.read(lambda answers: answers.job("team", "mine")))
        assert found["attempts"][0]["lastStep"] == 1
        connection.execute("PRAGMA max_page_count = 100000000")
        assert await recorder.record(_body(sample(START + 1, step=[2.0, 2.0]), LogRecord(START, key(), 0, large))) == 2
    found = json.loads(await readers.read(lambda answers: answers.job("team", "mine")))
    # The half of the batch that had been written was undone, and not remembered.
    assert found["attempts"][0]["lastStep"] == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "goes on by itself" in said[0] and said[1] == "Records are written again."
    await readers.close()


async def test_a_file_that_turns_out_to_be_damaged_is_kept_and_begun_anew(tmp_path: Path) -> None:
    file, readers = tmp_path / "h.sqlite", Readers(tmp_path / "h.sqlite")
    metrics = HistoryMetrics()
    recorder = Recorder(HistorySettings(file=str(file)), metrics, readers.begin_anew)
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
    assert [item["name"] for item in json.loads(await readers.read(Answers.jobs))["items"]] == ["after"]
    assert b"trainmaster_history_damaged_files_total 1.0" in metrics.text()
    await readers.close()
    await recorder.close()


async def test_maintenance_goes_on_after_a_failure(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert parse_lines(b"\n\n" + _body(job(START)) + b"\n \n") == [job(START)]


async def test_a_record_that_cant_be_written_costs_nobody_elses(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = _body(job(START, key("hostile", "2"), loss=0.125)).replace(b"0.125", b"1e999")
    body = b"\n".join((_body(job(START, key("first", "1"))), hostile, _body(job(START, key("last", "3")))))
    assert await recorder.record(body) == 2
    assert "A record of JobIdentity(namespace='team', name='hostile', uid='2') is left out (ValueError)" in caplog.text
    # So is one that a fault of ours trips over.
    broken = recorder._store._add_job
    monkeypatch.setattr(recorder._store, "_add_job", lambda *given: broken(*given) if given[0].id != 2 else 1 / 0)
    assert (
        await recorder.record(_body(*(job(START + 1, key(name, uid)) for name, uid in (("a", "1"), ("b", "3"))))) == 1
    )
    with Answers(tmp_path / "h.sqlite") as answers:
        assert {item["name"] for item in answers.jobs()["items"]} == {"first", "last"}


async def test_a_status_of_any_shape_is_recorded(recorder: Recorder) -> None:
    odd = ([], {}, 1, None, True, "x" * 1_000)
    assert (
        await recorder.record(_body(*(job(START, key(str(n), str(n)), phase=phase) for n, phase in enumerate(odd))))
        == 6
    )
