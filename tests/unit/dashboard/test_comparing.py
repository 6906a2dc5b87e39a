"""Runs are compared over their steps or their seconds."""

from __future__ import annotations

from typing import Any

from trainmaster.dashboard.comparing import ComparedJob, points_of

JOB = ComparedJob("team", "bert", "uid-1")


def curve(*lines: dict[str, Any], **shared: list[Any]) -> dict[str, Any]:
    default = {"worker": None, "gpu": None, "of": None, "limit": None}
    return {"attempt": [1] * len(shared["at"]), **shared, "lines": [{**default, **line} for line in lines]}


def test_steps_that_a_later_attempt_repeats_replace_those_of_the_earlier_one() -> None:
    found = curve(
        {"values": [5.0, 4.0, 3.0, 3.5, None, 2.0]},
        at=[0.0, 10.0, 20.0, 30.0, 40.0, 50.0],
        step=[1, 2, 3, 2, 3, None],
        attempt=[1, 1, 1, 2, 2, 2],
    )
    assert points_of(found, "step") == [(1, 5.0, 1), (2, 3.5, 2)]
    assert [place for place, *_ in points_of(found, "seconds")] == [0.0, 10.0, 20.0, 30.0, 50.0]
    run = JOB.run([found], "step", "loss")
    assert (run["x"], run["values"], run["attempt"], run["problem"]) == ([1, 2], [5.0, 3.5], [1, 2], None)


def test_of_several_workers_the_mean_is_compared() -> None:
    found = curve({"values": [1.0, None]}, {"values": [3.0, 4.0]}, at=[5.0, 10.0], step=[None, None])
    assert points_of(found, "seconds") == [(0.0, 2.0, 1), (5.0, 4.0, 1)]
    statistics = [{"of": of, "values": [value, value]} for of, value in (("minimum", 0.0), ("mean", 1.0))]
    assert points_of(curve(*statistics, at=[5.0, 10.0], step=[None, None]), "seconds") == [(0.0, 1.0, 1), (5.0, 1.0, 1)]
    assert JOB.run([found], "step", "cpuCores")["problem"] == "Job bert has no values of cpuCores with a step."


def test_a_job_without_the_metric_says_so() -> None:
    run = JOB.run([], "step", "accuracy")
    assert (run["x"], run["problem"]) == ([], "Job bert has no values of accuracy.")
    assert JOB.run(problem="You may not get it.")["problem"] == "You may not get it."
