"""A history that is killed at any moment keeps everything it acknowledged; one with a full disk reports it and
continues.
"""

from __future__ import annotations

import json
import random
import resource
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.history.history_process import Reviews, history, job, key, reviews, sample
from tests.unit.history.recorded import Answers
from trainmaster.history.drawing import TimeWindow
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import LogRecord


@pytest.fixture(scope="module")
def server() -> Iterator[Reviews]:
    with reviews() as found:
        yield found


def test_nothing_that_was_acknowledged_is_lost_by_a_kill(tmp_path: Path, server: Reviews) -> None:
    chance, acknowledged, step = random.Random(time.time_ns()), -1, 0
    at = time.time() - 1_000
    for _ in range(3):
        with history(tmp_path, server.url) as found:
            killing = threading.Timer(chance.uniform(0.05, 0.4), found.process.kill)
            killing.start()
            try:
                while True:
                    batch = [sample(at + (step + n) / 100, key(), step + n, loss=[1.0, 2.0]) for n in range(20)]
                    if found.post([job(at, key(), phase="Running", attempt=1), *batch])[0] != 200:
                        break
                    acknowledged = step = step + 20
            except (urllib.error.URLError, OSError):
                pass
            killing.join()
            found.process.wait()
        # The unacknowledged batch is sent again, as the operator does.
        with Answers(tmp_path / "history.sqlite") as answers:
            series = answers.series("team", "mine", "", TimeWindow(), 10_000) if acknowledged > 0 else {"step": []}
            assert series["step"] == list(range(len(series["step"])))
            assert len(series["step"]) >= acknowledged
    assert acknowledged > 0
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_disk_without_room_is_waited_for(tmp_path: Path, server: Reviews) -> None:
    large = LogRecord(time.time(), key(), 0, KeptLog(tuple(f"{n * 7919:x}" for n in range(200_000))))
    with history(tmp_path, server.url) as found:
        assert found.post([job(time.time(), key(), phase="Running")])[0] == 200
        # No file may exceed this size: a write fails as on a full disk.
        _, most = resource.prlimit(found.process.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        status, answer = found.post([large])
        assert (status, answer["code"]) == (503, 503) and "there is no room on its disk" in answer["message"]
        assert found.get("/v1/namespaces/team/jobs/mine")[1]["phase"] == "Running"
        resource.prlimit(found.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, most))
        assert found.post([large])[0] == 200
        assert len(found.get("/v1/namespaces/team/jobs/mine/logs?tail=3")[1]["items"][0]["lines"]) == 3
        assert found.stop() == 0
    said = [json.loads(text)["message"] for text in found.lines]
    assert any("resumes by itself" in message for message in said)
