"""A job's curves arrive complete and in the history's finest resolution, even if single answers are thinned."""

from __future__ import annotations

import pytest

from tests.unit.client.history.recorded import NEW_SECONDS, RANKS, SLOW_RANK, START, THINNED_UNTIL, RecordedHistory
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.history import HistoryReader, curves, rank_figures, reading, system_figures
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES


@pytest.mark.parametrize("points", [4, 5, 6, 7, 8, 50, 5_000])
def test_every_point_that_is_recorded_comes_once_and_by_time(monkeypatch: pytest.MonkeyPatch, points: int) -> None:
    monkeypatch.setattr(reading, "PIECE_POINTS", points)
    history = RecordedHistory()
    found = run(curves(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert len(history.points) > 1000
    for name in ("at", "attempt", "step", "loss", "redone"):
        assert found[name] == [point[name] for point in history.points]
    assert {len(values) for values in found.values()} == {len(history.points)}
    assert [name for name in found if name.startswith("timeSpent.")] == [
        f"timeSpent.{each}" for each in TIME_CATEGORIES
    ]
    assert found["timeSpent.queue"] == [None] * len(history.points)
    assert found["metrics.eval_f1"] == found["loss"], "a metric of the ranks' own"


@pytest.mark.parametrize("points", range(10, 20))
def test_the_first_points_come_too_where_the_overview_has_one_for_several(
    monkeypatch: pytest.MonkeyPatch, points: int
) -> None:
    monkeypatch.setattr(reading, "PIECE_POINTS", points)
    history = RecordedHistory()
    begin = START + THINNED_UNTIL
    history.points = [{**history.points[0], "at": begin + NEW_SECONDS * number} for number in range(4_000)]
    found = run(curves(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert found["at"] == [point["at"] for point in history.points]


def test_a_time_without_points_is_passed_over() -> None:
    history = RecordedHistory()
    # The job was suspended for a month.
    history.points = [{**point, "at": point["at"] + 30 * 86400 * (point["attempt"] > 2)} for point in history.points]
    found = run(curves(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert found["at"] == [point["at"] for point in history.points]
    assert len(history.asked) < 40


def test_the_figures_of_ranks_are_a_row_for_each_rank_and_time() -> None:
    history = RecordedHistory()
    found, left_out = run(rank_figures(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert left_out == 0
    assert len(found["at"]) == RANKS * len(history.points)
    assert found["rank"][:RANKS] == list(range(RANKS)) and found["worker"][:RANKS] == [0, 0, 1, 1, 2, 2, 3, 3]
    slow = {
        time
        for time, rank, attempt in zip(found["stepSeconds"], found["rank"], found["attempt"], strict=True)
        if rank == SLOW_RANK and attempt == 4
    }
    assert slow == {0.25}
    assert found["loss"] == [point["loss"] for point in history.points for _ in range(RANKS)]


def test_ranks_that_were_left_out_are_counted_and_a_rank_without_figures_has_no_row() -> None:
    history = RecordedHistory()
    history.answers["heat"] = {
        **{"kind": "RankHeat", "resolutionSeconds": 1e9, "at": [5.0], "attempt": [None]},
        **{"ranks": [0, 9], "workers": [0, 4], "values": [[0.5, None]], "leftOut": 1000},
    }
    found, left_out = run(rank_figures(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert left_out == 1000
    assert {name: values[0] for name, values in found.items()} == {
        **{"at": 5.0, "attempt": 0, "rank": 0, "worker": 0, "stepSeconds": 0.5, "gradNorm": 0.5, "loss": 0.5}
    }
    assert found["rank"] == [0]


def test_each_worker_and_gpu_has_a_row_for_each_time_with_its_figures() -> None:
    history = RecordedHistory()
    found = run(system_figures(HistoryReader(Blocking(history)), "team", "bert-mrpc"))
    assert list(found) == [
        *("at", "attempt", "worker", "gpu", "of", "cpuCores", "cpuLimitCores", "gpuUtilization"),
    ]
    assert len(found["at"]) == 3 * len(history.points) and found["at"] == sorted(found["at"])
    assert [values[:3] for values in list(found.values())[2:]] == [
        *([0, 1, 1], [None, None, 3], [None] * 3, [1.5, 2.5, None], [4.0, 4.0, None], [None, None, 0.5]),
    ]
    history.answers["metrics"] = {"kind": "MetricNames"}
    assert run(system_figures(HistoryReader(Blocking(history)), "team", "bert-mrpc"))["at"] == []
