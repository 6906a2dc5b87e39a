"""`history.answers.AnswerThreads` returns complete answers, and a slow answer doesn't delay the others."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Recorded, job
from trainmaster.client.history.answers import EvidenceList, HistoryAnswer, LogList, RecordedJobList, Series
from trainmaster.history import answers as reading
from trainmaster.history.answers import Answers, AnswerThreads
from trainmaster.serving import Refused


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    recorded = Recorded(tmp_path)
    recorded.store.record([job(START)])
    yield recorded.file
    recorded.store.close()


@pytest.mark.parametrize(
    "answer",
    [
        RecordedJobList.of(items=[]),
        EvidenceList.of(
            items=[{"attempt": 1, "none": None, "text": 'a"\N{SNOWMAN}', "deep": {"a": [{"b": [1, [2]]}]}}]
        ),
        LogList.of(items=[{"worker": 0, "lines": ["half a character: \ud83d"]}]),
        Series.of(at=[n / 3 for n in range(5_001)]),
    ],
)
async def test_an_answer_is_the_json_of_what_is_asked(file: Path, answer: HistoryAnswer) -> None:
    readers = AnswerThreads(file)
    assert json.loads((await readers.read(lambda _: answer))[0]) == answer.to_data()
    packed, is_compressed = await readers.read(lambda _: answer, compress=True)
    assert json.loads(zlib.decompress(packed, 31) if is_compressed else packed) == answer.to_data()
    assert is_compressed == isinstance(answer, Series)
    await readers.close()


async def test_long_answers_keep_no_list_waiting(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WAIT_SECONDS", 0.1)
    readers, go = AnswerThreads(file), threading.Event()

    def wait(_: Answers) -> int:
        go.wait(10)
        return 0

    asking = [asyncio.create_task(readers.read(wait, is_long=True)) for _ in range(8)]
    await asyncio.sleep(0)
    assert json.loads((await readers.read(Answers.jobs))[0])["kind"] == "RecordedJobList"
    with pytest.raises(Refused, match="Other requests have been answered"):
        await asking[-1]
    go.set()
    await asyncio.gather(*asking, return_exceptions=True)
    await readers.close()


async def test_an_answer_that_takes_too_long_is_given_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only SQLite checked the clock, but a heat map spends its time on its figures."""
    monkeypatch.setattr(reading, "READ_SECONDS", 0.02)

    def long(answers: Answers) -> int:
        for _ in range(500):
            answers.check()
            time.sleep(0.005)
        return 0

    readers = AnswerThreads(file)
    with pytest.raises(Refused, match="ask for less"):
        await readers.read(long, is_long=True)
    await readers.close()
