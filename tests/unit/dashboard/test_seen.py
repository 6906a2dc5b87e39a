"""The dashboard keeps a few hundred samples of a job, however long it runs, in the shape of the history's answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.processes.dashboard.fake_api import job
from trainmaster.client import RankMetrics, TrainingJob
from trainmaster.client.history.answers import columns_of
from trainmaster.dashboard.figures import MOST_JOBS, MOST_RANKS, MOST_SAMPLES, Figures
from trainmaster.dashboard.job_page import attempts_of
from trainmaster.history.drawing import TimeWindow

WHOLE = TimeWindow()
AT = [f"2026-11-26T02:00:0{second}Z" for second in range(6)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr("trainmaster.dashboard.figures.time.time", lambda: now[0])
    return now


def look(of: Figures, clock: list[float], seconds: float, ranks: list[RankMetrics], **status: Any) -> None:
    """Reads the job some seconds later."""
    clock[0] += seconds
    of.add(TrainingJob.of(job("bert", **status)), ranks)


def test_hours_are_some_hundred_samples_evenly_from_the_beginning_to_now(clock: list[float]) -> None:
    made = Figures()
    for step in range(10_000):
        look(made, clock, 2.0, [RankMetrics(0, 0, step=step)])
    found = made.series("uid-bert", WHOLE, 10_000)
    assert MOST_SAMPLES / 4 < len(found["at"]) <= MOST_SAMPLES
    gaps = [later - sooner for sooner, later in zip(found["at"], found["at"][1:], strict=False)]
    assert max(gaps) < 4 * min(gaps) and found["at"][0] < 1_010 and clock[0] - found["at"][-1] <= max(gaps)
    assert len(made.series("uid-bert", WHOLE, 100)["at"]) <= 100
    late = made.series("uid-bert", TimeWindow(clock[0] - 1_000), 10_000)["at"]
    assert late and min(late) >= clock[0] - 1_000


def test_curves_have_what_ranks_and_status_say(clock: list[float]) -> None:
    made = Figures()
    ranks = [RankMetrics(rank // 2, rank, step=5, loss=0.5, step_seconds=0.1 * (rank + 1)) for rank in range(3)]
    spent = {"productive": 3.0, "stall": 1.0}
    look(made, clock, 2.0, ranks, progress={"step": 4, "furthestStep": 9, "goodput": 0.75}, timeSpent=spent)
    found = made.series("uid-bert", WHOLE, 10)
    assert {name: found[name][0] for name in ("step", "loss", "stepSeconds", "redone", "goodput")} == {
        **{"step": 5, "loss": 0.5, "stepSeconds": pytest.approx(0.2), "redone": True, "goodput": 0.75}
    }
    columns = columns_of(found)
    assert [columns[name] for name in ("slowestStepSeconds", "timeSpent.productive", "timeSpent.stall")] == [
        *([pytest.approx(0.3)], [3.0], [1.0])
    ]
    assert all(len(values) == 1 for values in columns.values())


def test_a_heat_map_has_every_rank_that_was_there_at_any_time(clock: list[float]) -> None:
    made = Figures()
    look(made, clock, 2.0, [RankMetrics(0, 0, step_seconds=0.5), RankMetrics(0, 1)])
    look(made, clock, 2.0, [RankMetrics(0, 0, step_seconds=math.pi), RankMetrics(1, 2, step_seconds=0.25)])
    found = made.heat("uid-bert", WHOLE, 10, "stepSeconds")
    assert (found["ranks"], found["workers"]) == ([0, 1, 2], [0, 0, 1])
    assert found["values"] == [[0.5, None, None], [3.142, None, 0.25]]
    look(made, clock, 2.0, [RankMetrics(0, rank) for rank in range(MOST_RANKS + 7)])
    found = made.heat("uid-bert", WHOLE, 10, "stepSeconds")
    assert found["leftOut"] == 7


def test_two_workers_that_claim_one_rank_break_nothing(clock: list[float]) -> None:
    made = Figures()
    look(made, clock, 2.0, [RankMetrics(0, 0, step_seconds=0.5), RankMetrics(1, 0, step_seconds=9.0)])
    found = made.heat("uid-bert", WHOLE, 10, "stepSeconds")
    assert (found["ranks"], found["workers"], found["values"], found["leftOut"]) == ([0], [0], [[0.5]], 0)


def test_only_the_jobs_that_were_looked_at_last_are_kept(clock: list[float]) -> None:
    made = Figures()
    for number in range(MOST_JOBS + 1):
        made.add(TrainingJob.of(job(f"job-{number}")), [])
    assert made.series("uid-job-0", WHOLE, 10)["at"] == []
    assert made.series(f"uid-job-{MOST_JOBS}", WHOLE, 10)["at"]


def failure(attempt: int, at: str, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "reason": "Error", "failedAt": at, **more}


def test_attempts_are_made_of_failures_where_there_is_no_history() -> None:
    of = TrainingJob.of(
        job(
            "bert",
            attempt=3,
            startTime=AT[0],
            conditions=[{"type": "Running", "status": "True", "reason": "AllRanksUp", "lastTransitionTime": AT[5]}],
            attemptStartTime=AT[4],
            progress={"attempt": 3, "step": 7},
            failures=[failure(2, AT[3], counted=False), failure(1, AT[1])],
        )
    )
    found = attempts_of(of)
    assert [(one["attempt"], one["startedAt"], one["endedAt"], one["outcome"]) for one in found] == [
        (1, AT[0], AT[1], "Failed"),
        (2, AT[1], AT[3], "Disrupted"),
        (3, AT[4], None, "Running"),
    ]
    assert found[2]["runningAt"] == AT[5].replace("Z", ".000Z") and found[1]["runningAt"] is None
    assert found[2]["lastStep"] == 7 and found[0]["failure"]["reason"] == "Error"


def test_what_the_status_says_of_an_attempts_end_counts_before_the_history() -> None:
    recorded = [{**attempts_of(TrainingJob.of(job("bert")))[0], "startedAt": AT[0], "runningAt": AT[1]}]
    of = TrainingJob.of(job("bert", phase="Failed", failures=[failure(1, AT[1])], completionTime=AT[2]))
    (one,) = attempts_of(of, recorded)
    assert (one["startedAt"], one["runningAt"], one["endedAt"], one["outcome"]) == (AT[0], AT[1], AT[1], "Failed")
    (ended,) = attempts_of(TrainingJob.of(job("bert", phase="Succeeded", completionTime=AT[2])), recorded)
    assert (ended["outcome"], ended["endedAt"]) == ("Succeeded", AT[2])


def test_ranks_that_are_others_at_each_look_are_no_more(clock: list[float]) -> None:
    made = Figures()
    for first in range(0, 20 * MOST_RANKS, MOST_RANKS):
        look(made, clock, 2.0, [RankMetrics(0, rank, step_seconds=0.5) for rank in range(first, first + MOST_RANKS)])
    found = made.heat("uid-bert", WHOLE, 240, "stepSeconds")
    assert len(found["ranks"]) == 4 * MOST_RANKS and found["leftOut"] == 16 * MOST_RANKS
    assert {len(values) for values in found["values"]} == {4 * MOST_RANKS}
