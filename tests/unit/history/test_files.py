"""A history's file is read without a server, in the shape that readers of a server's answers rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Recorded
from tests.unit.history.test_answers import _life
from trainmaster.client.blocking import run
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound
from trainmaster.client.history import HistoryReader, curves, rank_figures
from trainmaster.client.history.checking import Checker
from trainmaster.history.files import FileHistory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A history's file, whose process has ended."""
    recorded = Recorded(tmp_path)
    recorded.clock.now = START + 1_000
    recorded.store.record(_life())
    recorded.age()
    recorded.store.close()
    return recorded.file


def test_what_a_file_says_has_the_shape_that_is_checked_of_a_server(file: Path) -> None:
    reader: HistoryReader = FileHistory(file)
    checker, where = Checker(str(file)), ("team", "mine")
    assert [job["name"] for job in checker.jobs(run(reader.jobs()))["items"]] == ["mine"]
    assert checker.jobs(run(reader.jobs("elsewhere")))["items"] == []
    assert [attempt["outcome"] for attempt in checker.job(run(reader.job(*where)))["attempts"]] == [
        "Failed",
        "Succeeded",
    ]
    assert checker.series(run(reader.series(*where)))["step"][-1] == 9
    assert checker.heat(run(reader.heat(*where)))["ranks"] == [0, 1]
    assert len(checker.evidence(run(reader.evidence(*where)))["items"]) == 1
    assert checker.logs(run(reader.logs(*where, tail=1)))["items"][0]["lines"] == ["three"]


def test_curves_come_out_of_a_file_as_columns(file: Path) -> None:
    reader = FileHistory(file)
    columns = run(curves(reader, "team", "mine"))
    assert len(columns["at"]) == len(columns["loss"]) == 13
    by_rank, left_out = run(rank_figures(reader, "team", "mine"))
    assert (len(by_rank["rank"]), left_out) == (26, 0)


def test_what_isn_t_there_is_one_sentence(file: Path, tmp_path: Path) -> None:
    reader = FileHistory(file)
    with pytest.raises(JobNotFound, match="other"):
        run(reader.job("team", "other"))
    with pytest.raises(InvalidRequest, match="continue: 'x'"):
        run(reader.jobs(after="x"))
    other = tmp_path / "job.yaml"
    other.write_text("kind: DistributedTrainingJob\n")
    with pytest.raises(ClientError, match=r"job\.yaml can't be read as a history"):
        FileHistory(other)
