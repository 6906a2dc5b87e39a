"""`history.files`: a file answers what a server of it does, and its errors are the client's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Recorded, job, key, sample
from trainmaster.client.blocking import run
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound
from trainmaster.client.history import curves, rank_figures
from trainmaster.client.history.checking import Checker
from trainmaster.history.files import HistoryFile
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import LogRecord


@pytest.fixture
def file(tmp_path: Path) -> HistoryFile:
    recorded = Recorded(tmp_path)
    recorded.clock.now = START + 100
    records = [sample(START + n, step=[float(n)] * 2, step_seconds=[1.0, 2.0]) for n in range(10)]
    recorded.store.record(
        [job(START, phase="Running", attempt=1), *records, LogRecord(START, key(), 0, KeptLog(("a",)))]
    )
    recorded.store.record([job(START, key("other", "uid-2"), created=START + 1)])
    recorded.store.close()
    return HistoryFile(recorded.file)


def test_a_file_is_read_without_a_server(file: HistoryFile) -> None:
    first = run(file.jobs("team", limit=1))
    assert [item["name"] for item in first["items"]] == ["other"]
    assert [item["name"] for item in run(file.jobs(limit=1, after=first["continue"]))["items"]] == ["mine"]
    assert run(file.job("team", "mine", uid="uid-1"))["attempts"][0]["lastStep"] == 9
    assert run(file.series("team", "mine", since=START + 3, until=START + 5))["step"] == [3, 4, 5]
    assert run(file.heat("team", "mine", columns=20))["values"] == [[1.0, 2.0]] * 10
    assert run(file.evidence("team", "mine"))["items"] == []
    assert run(file.logs("team", "mine", worker=0, tail=1))["items"][0]["lines"] == ["a"]


def test_its_errors_are_the_clients(file: HistoryFile, tmp_path: Path) -> None:
    with pytest.raises(JobNotFound, match="Nothing was recorded of a job none in namespace team"):
        run(file.job("team", "none"))
    with pytest.raises(InvalidRequest, match="figure: 'x' is none of stepSeconds"):
        run(file.heat("team", "mine", figure="x"))
    with pytest.raises(InvalidRequest, match="continue: 'x' wasn't answered"):
        run(file.jobs(after="x"))
    with pytest.raises(ClientError, match="isn't there; name the file of a history"):
        run(HistoryFile(tmp_path / "none").jobs())


def test_what_a_file_says_has_the_shape_that_is_checked_of_a_server(file: HistoryFile) -> None:
    checker, where = Checker("the file"), ("team", "mine")
    assert len(checker.jobs(run(file.jobs()))["items"]) == 2
    assert checker.job(run(file.job(*where)))["attempts"][0]["attempt"] == 1
    assert checker.series(run(file.series(*where)))["step"][-1] == 9
    assert checker.heat(run(file.heat(*where)))["ranks"] == [0, 1]
    assert checker.evidence(run(file.evidence(*where)))["items"] == []
    assert checker.logs(run(file.logs(*where)))["items"][0]["worker"] == 0


def test_curves_come_out_of_a_file_as_columns(file: HistoryFile) -> None:
    columns = run(curves(file, "team", "mine"))
    assert (len(columns["at"]), columns["step"][-1]) == (10, 9)
    by_rank, left_out = run(rank_figures(file, "team", "mine"))
    assert (len(by_rank["rank"]), left_out) == (20, 0)
