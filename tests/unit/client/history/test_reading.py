"""The client asks a history by its documented interface, and checks each answer before using it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.unit.client.history.recorded import UID, RecordedHistory, detail, recorded_job
from trainmaster.client import ClientError, InvalidRequest, JobNotFound, NoCluster
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.history import HistoryReader

JOB = "/v1/namespaces/team/jobs/bert-mrpc"
SERIES: dict[str, Any] = {"kind": "Series", "resolutionSeconds": 2, "at": [1.0, 2.0]}
HEAT: dict[str, Any] = {"kind": "RankHeat", "at": [1.0], "ranks": [0, 1], "values": [[0.1, None]]}


def client(history: RecordedHistory) -> HistoryReader:
    return HistoryReader(Blocking(history), address="https://history")


def test_each_question_has_its_path_and_leaves_out_what_isnt_given() -> None:
    history = RecordedHistory()
    reader = client(history)
    run(reader.jobs("team", limit=1, after="1"))
    run(reader.job("team", "bert-mrpc"))
    run(reader.series("team", "bert-mrpc", uid=UID, since=1.5, until=9))
    run(reader.heat("team", "bert-mrpc", figure="loss"))
    run(reader.evidence("team", "bert-mrpc", uid=UID))
    run(reader.logs("team", "bert-mrpc", worker=0, tail=5))
    assert history.asked == [
        ("/v1/jobs", {"namespace": "team", "limit": "1", "continue": "1"}),
        (JOB, {}),
        (f"{JOB}/series", {"uid": UID, "from": "1.5", "to": "9", "points": "1000"}),
        (f"{JOB}/heat", {"columns": "240", "figure": "loss"}),
        (f"{JOB}/evidence", {"uid": UID}),
        (f"{JOB}/logs", {"worker": "0", "tail": "5"}),
    ]


def test_what_is_missing_is_none() -> None:
    history = RecordedHistory(answers={"jobs": {"kind": "RecordedJobList", "items": [_named()]}, "series": SERIES})
    assert run(client(history).jobs())["items"][0]["goodput"] is None
    found = run(client(history).series("team", "bert-mrpc"))
    assert (found["loss"], found["redone"], found["timeSpent"]) == ([None, None], [None, None], {})


def _named(**changed: Any) -> dict[str, Any]:
    return {"uid": "u", "namespace": "team", "name": "bert", **changed}


def _jobs(**changed: Any) -> dict[str, Any]:
    return {"kind": "RecordedJobList", "items": [recorded_job(), _named(**changed)]}


@pytest.mark.parametrize(
    ("question", "answer", "problem"),
    [
        ("jobs", {"kind": "Series"}, "kind is 'Series': Input should be 'RecordedJobList'"),
        ("jobs", {"kind": "RecordedJobList", "items": {"0": 1}}, "items is an object: Input should be a valid list"),
        ("jobs", {"kind": "RecordedJobList", "items": [1]}, "items[0] is 1: Input should be"),
        ("jobs", _jobs(name=None), "items[1].name: Field required"),
        ("jobs", _jobs(loss="nan"), "items[1].loss is 'nan': Input should be a valid number"),
        ("jobs", _jobs(loss=float("nan")), "items[1].loss is nan: Input should be a finite number"),
        ("jobs", _jobs(step=1.5), "items[1].step is 1.5: Input should be a valid integer"),
        (
            "jobs",
            _jobs(lastFailure=[]),
            "items[1].lastFailure is a list of 0 items: Input should be",
        ),
        ("job", detail(attempts=[{}]), "attempts[0].attempt: Field required"),
        (
            "job",
            detail(attempts=[{"attempt": 1, "workers": 5}]),
            "attempts[0].workers is 5: Input should be",
        ),
        ("job", detail(lives=[{}]), "lives[0].uid: Field required"),
        ("job", detail(job=7), "job is 7: Input should be a valid dictionary"),
        ("series", {**SERIES, "loss": [1.0]}, "loss: has 1 items where there have to be 2"),
        ("series", {**SERIES, "loss": [1.0, float("inf")]}, "loss[1] is inf: Input should be a finite number"),
        ("series", {**SERIES, "at": [2.0, 1.0]}, "at: is not in the order of time"),
        ("series", {**SERIES, "at": [None, 1.0]}, "at[0] is null: Input should be a valid number"),
        ("series", {**SERIES, "redone": [1, True]}, "redone[0] is 1: Input should be a valid boolean"),
        ("series", {**SERIES, "timeSpent": {"stall": [1.0]}}, "timeSpent.stall: has 1 items where there have to be 2"),
        (
            "series",
            {**SERIES, "resolutionSeconds": -1},
            "resolutionSeconds is -1: Input should be greater",
        ),
        ("heat", {**HEAT, "values": [[0.1]]}, "values[0]: has 1 items where there have to be 2"),
        ("heat", {**HEAT, "values": [5]}, "values[0] is 5: Input should be a valid list"),
        ("heat", {**HEAT, "ranks": [-1, 0]}, "ranks[0] is -1: Input should be greater than or equal to 0"),
        ("heat", {**HEAT, "leftOut": "many"}, "leftOut is 'many': Input should be a valid integer"),
        ("evidence", {"kind": "EvidenceList", "items": [{}]}, "items[0].attempt: Field required"),
        (
            "logs",
            {"kind": "LogList", "items": [{"worker": 0, "lines": [3]}]},
            "items[0].lines[0] is 3: Input",
        ),
        (
            "logs",
            {"kind": "LogList", "items": [{"worker": 0, "lines": ["a"], "times": []}]},
            "items[0].times: has 0 items where there have to be 1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_that_nobody_can_rely_on_is_a_sentence(question: str, answer: Any, problem: str) -> None:
    history = RecordedHistory(answers={"bert-mrpc" if question == "job" else question: answer})
    asked = getattr(client(history), question)
    with pytest.raises(NoCluster) as raised:
        run(asked() if question == "jobs" else asked("team", "bert-mrpc"))
    assert f"({problem}" in str(raised.value)
    assert str(raised.value).startswith("The history at https://history answered what can't be read (")


@pytest.mark.parametrize(
    ("question", "answer", "problem"),
    [
        (
            "jobs",
            {"kind": "RecordedJobList", "items": [_named()] * 501},
            "items is a list of 501 items: List should have at most 500 items",
        ),
        (
            "series",
            {**SERIES, "at": [1.0] * 10_001},
            "at is a list of 10001 items: List should have at most 10000 items",
        ),
        (
            "heat",
            {**HEAT, "at": [1.0] * 241, "values": [[]] * 241},
            "values is a list of 241 items: List should have at most 240 items",
        ),
        (
            "heat",
            {**HEAT, "values": [[0.1] * 1_025]},
            "values[0] is a list of 1025 items: List should have at most 1024 items",
        ),
    ],
)
def test_an_answer_is_bounded(question: str, answer: Any, problem: str) -> None:
    test_an_answer_that_nobody_can_rely_on_is_a_sentence(question, answer, problem)


def test_a_million_wrong_items_are_one_error() -> None:
    """Otherwise each item would get its own error object, which is a hundred times as large."""
    history = RecordedHistory(answers={"logs": {"kind": "LogList", "items": [{"worker": 0, "lines": [1] * 1_000_000}]}})
    tracemalloc.start()
    try:
        with pytest.raises(NoCluster, match=r"items\[0\]\.lines\[0\] is 1: Input should be a valid string"):
            run(client(history).logs("team", "bert-mrpc"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_name_is_no_path() -> None:
    history = RecordedHistory()
    for namespace, name in (("team", "../secrets"), ("team/../x", "bert-mrpc"), ("team", "a?b")):
        with pytest.raises(InvalidRequest):
            run(client(history).job(namespace, name))
    assert history.asked == []


def test_a_job_that_wasnt_recorded_is_an_error() -> None:
    with pytest.raises(JobNotFound, match="No job other was recorded"):
        run(client(RecordedHistory()).job("team", "other"))
    with pytest.raises(ClientError):
        run(client(RecordedHistory(answers={"evidence": NoCluster("away")})).evidence("team", "bert-mrpc"))
