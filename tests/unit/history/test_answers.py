"""`history.answers` returns records in the contract's shapes, and returns repeated records once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.history.recorded import START, Answers, Recorded, job, key, sample
from trainmaster.client.errors import JobNotFound
from trainmaster.history import answers as answering
from trainmaster.history import store as stores
from trainmaster.history.drawing import TimeWindow
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import LONGEST_LOG, KeptLog
from trainmaster_operator.api.records import (
    DeletedRecord,
    EvidenceRecord,
    JobRecord,
    LogRecord,
    PodPlace,
    Record,
    parse_record,
    to_wire,
)
from trainmaster_operator.api.times import to_text

FAILURE = {"attempt": 1, "reason": "OOMKilled", "message": "rank 1", "counted": True, "failedAt": to_text(START + 50)}


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    found = Recorded(tmp_path)
    found.clock.now = START + 1_000
    yield found
    found.store.close()


def _life() -> list[Record]:
    """Returns the records of a job that failed once, continued from step 5, and was deleted."""
    progress = {"step": 9, "totalSteps": 20, "loss": 1.5, "goodput": 0.75, "result": {"accuracy": 0.9}}
    first = {"phase": "Running", "attempt": 1, "startTime": to_text(START), "attemptStartTime": to_text(START)}
    second = {**first, "attempt": 2, "restarts": 1, "attemptStartTime": to_text(START + 55), "failures": [FAILURE]}
    second |= {"progress": progress, "timeSpent": {"productive": 30.5, "until": to_text(START)}}
    return [
        job(START + 1, pods=[PodPlace(0, "mine-0", "node-a"), PodPlace(1, "mine-1", "node-b")], **first),
        *(
            sample(
                START + 10 + n,
                step=[float(n), None],
                loss=[2.0, 4.0],
                step_seconds=[1.0, 3.0],
                learning_rate=[0.1, 0.1],
            )
            for n in range(8)
        ),
        EvidenceRecord(START + 51, key(), 1, AttemptEvidence(1, failure=FAILURE, logs={1: "Killed"}).to_json()),
        job(START + 56, pods=[PodPlace(0, "mine-0", "node-a"), PodPlace(1, "mine-1", "node-c")], **second),
        *(
            sample(START + 60 + n, attempt=2, step=[5.0 + n] * 2, grad_norm=[1.0, 7.0], samples_per_second=[8.0, 4.0])
            for n in range(5)
        ),
        LogRecord(START + 90, key(), 1, KeptLog(("one", "two", "three"), (1, 2, 3), cut=True)),
        job(START + 91, **{**second, "phase": "Succeeded", "completionTime": to_text(START + 90)}),
        DeletedRecord(START + 95, key()),
    ]


def _all(recorded: Recorded) -> dict[str, Any]:
    where = ("team", "mine", "")
    with Answers(recorded.file) as answers:
        return {
            "jobs": answers.jobs(),
            "job": answers.job(*where),
            "series": answers.series(*where, TimeWindow(), 1000),
            "heat": answers.heat(*where, TimeWindow(), 240, "stepSeconds"),
            "evidence": answers.evidence(*where),
            "logs": answers.logs(*where),
        }


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_life_is_answered_after_it_is_over(recorded: Recorded, is_packed: bool) -> None:
    recorded.store.record(_life())
    if is_packed:
        recorded.age()
    found = _all(recorded)
    [one] = found["jobs"]["items"]
    assert one == {
        "uid": "uid-1",
        "namespace": "team",
        "name": "mine",
        "createdAt": to_text(START),
        "startedAt": to_text(START),
        "endedAt": to_text(START + 90),
        "deletedAt": to_text(START + 95),
        "phase": "Succeeded",
        "attempt": 2,
        "restarts": 1,
        "disruptions": 0,
        "step": 9,
        "totalSteps": 20,
        "loss": 1.5,
        "goodput": 0.75,
        "lastFailure": FAILURE,
        "result": {"accuracy": 0.9},
    }
    detail = found["job"]
    assert one.items() <= {**detail, "kind": ""}.items() and detail["kind"] == "RecordedJobDetail"
    assert detail["lives"] == [{"uid": "uid-1", "createdAt": to_text(START), "deletedAt": to_text(START + 95)}]
    first, second = detail["attempts"]
    assert (first["outcome"], first["failure"], first["endedAt"]) == ("Failed", FAILURE, to_text(START + 50))
    assert (first["firstStep"], first["lastStep"], second["firstStep"], second["lastStep"]) == (0, 7, 5, 9)
    assert [place["node"] for place in first["workers"]] == ["node-a", "node-b"]
    assert [place["node"] for place in second["workers"]] == ["node-a", "node-c"]
    assert (second["outcome"], second["endedAt"]) == ("Succeeded", to_text(START + 90))
    series = found["series"]
    assert series["at"] == [*(START + 10 + n for n in range(8)), *(START + 60 + n for n in range(5))]
    assert series["step"] == [*range(8), *range(5, 10)] and series["attempt"] == [1] * 8 + [2] * 5
    assert series["redone"] == [False] * 8 + [True] * 3 + [False] * 2
    # The series are rank 0's loss, the median and slowest step time, the largest norm, and all ranks' samples together.
    for name, early, late in (
        ("loss", 2.0, None),
        ("stepSeconds", 2.0, None),
        ("slowestStepSeconds", 3.0, None),
        ("learningRate", 0.1, None),
        ("gradNorm", None, 7.0),
        ("samplesPerSecond", None, 12.0),
        ("goodput", None, 0.75),
    ):
        assert series[name] == [early] * 8 + [late] * 5, name
    assert series["timeSpent"]["productive"] == [None] * 8 + [30.5] * 5
    assert series["resolutionSeconds"] == 1.0 and {len(series[name]) for name in ("at", "loss", "redone")} == {13}
    heat = found["heat"]
    assert heat["values"] == [[1.0, 3.0]] * 8 + ([[None, None]] * 5)
    assert (heat["ranks"], heat["workers"], heat["leftOut"], heat["figure"]) == ([0, 1], [0, 0], 0, "stepSeconds")
    [evidence] = found["evidence"]["items"]
    assert (evidence["attempt"], evidence["logs"]) == (1, {"1": "Killed"})
    log = {"worker": 1, "lines": ["one", "two", "three"], "times": [1, 2, 3], "cut": True}
    assert found["logs"] == {"kind": "LogList", "items": [log]}


def test_what_comes_twice_changes_nothing(recorded: Recorded, tmp_path: Path) -> None:
    life = [parse_record(json.loads(json.dumps(to_wire(record)))) for record in _life()]
    (tmp_path / "other").mkdir()
    other = Recorded(tmp_path / "other", recorded.clock)
    other.store.record(life)
    chance = random.Random(14)
    for _ in range(20):
        # Batches have any size, and each is repeated a few times from the beginning of the last one.
        first = 0
        while first < len(life):
            end = min(len(life), first + chance.randint(1, 9))
            for _ in range(chance.randint(1, 3)):
                recorded.store.record(life[first:end])
            if chance.random() < 0.3:
                recorded.age()
                recorded.store.forget()
            first = end
        assert _all(recorded) == _all(other)


def test_the_second_life_of_a_name_is_another(recorded: Recorded) -> None:
    recorded.store.record([job(START + 1, phase="Running", attempt=1)])
    # Nobody saw the deletion of the first job.
    recorded.store.record([job(START + 101, key(uid="uid-2"), created=START + 100, phase="Pending")])
    with Answers(recorded.file) as answers:
        assert answers.job("team", "mine")["uid"] == "uid-2"
        first = answers.job("team", "mine", "uid-1")
        assert first["deletedAt"] == to_text(START + 100) and first["attempts"][0]["outcome"] == "Deleted"
        assert [life["uid"] for life in first["lives"]] == ["uid-1", "uid-2"]
        assert [item["uid"] for item in answers.jobs()["items"]] == ["uid-2", "uid-1"]
        with pytest.raises(
            JobNotFound, match=r"^Nothing was recorded of a job mine with the uid x in namespace team\.$"
        ):
            answers.job("team", "mine", "x")


def test_a_list_goes_on_where_it_ended(recorded: Recorded) -> None:
    for number in range(7):
        recorded.store.record([job(START, key(f"job-{number}", f"uid-{number}"), created=START + number // 3)])
    names, before = [], None
    with Answers(recorded.file) as answers:
        while True:
            found = answers.jobs("team", limit=3, before=before)
            names += [item["name"] for item in found["items"]]
            if not found["continue"]:
                break
            created, number = found["continue"].split(":")
            before = (float(created), int(number))
        assert names == [f"job-{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
        assert [item["name"] for item in answers.jobs(name="job-4")["items"]] == ["job-4"]
        assert answers.jobs("other")["items"] == []


def test_a_log_is_answered_from_its_end(recorded: Recorded) -> None:
    recorded.store.record([LogRecord(START, key(), n, KeptLog(("a", "b", "c"))) for n in range(2)])
    with Answers(recorded.file) as answers:
        found = answers.logs("team", "mine", worker=1, tail=2)["items"]
    assert found == [{"worker": 1, "lines": ["b", "c"], "times": None, "cut": True}]


def test_a_log_goes_on_with_the_workers_next_pod(recorded: Recorded) -> None:
    first, both = KeptLog(("a", "b"), (1, 2)), KeptLog(("a", "b", "c"), (1, 2, 3))
    next_pod = KeptLog(("--- attempt 2 ---", "d"), (4, 5))
    for log in (first, both, both, next_pod, next_pod):
        recorded.store.record([LogRecord(START, key(), 0, log)])
    with Answers(recorded.file) as answers:
        (found,) = answers.logs("team", "mine")["items"]
    assert found["lines"] == ["a", "b", "c", "--- attempt 2 ---", "d"] and found["times"] == [1, 2, 3, 4, 5]
    for number in range(3):
        recorded.store.record([LogRecord(START, key(), 0, KeptLog(("x" * 40_000,), (6 + number,)))])
    with Answers(recorded.file) as answers:
        (found,) = answers.logs("team", "mine")["items"]
    assert len("".join(found["lines"])) <= LONGEST_LOG and found["cut"]


def test_a_window_shows_its_time_alone(recorded: Recorded) -> None:
    recorded.store.record([sample(START + n, loss=[1.0, 1.0], step_seconds=[1.0, 2.0]) for n in range(100)])
    recorded.age()
    recorded.store.record([sample(START + 100 + n, loss=[1.0, 1.0], step_seconds=[1.0, 2.0]) for n in range(100)])
    with Answers(recorded.file) as answers:
        window = TimeWindow(START + 50, START + 149)
        assert answers.series("team", "mine", "", window, 1000)["at"] == [START + n for n in range(50, 150)]
        few = answers.series("team", "mine", "", window, 10)
        assert len(few["at"]) == 10 and few["at"][-1] == START + 149 and few["resolutionSeconds"] == 10.0
        assert len(answers.heat("team", "mine", "", window, 20, "stepSeconds")["at"]) == 20
        empty = answers.series("team", "mine", "", TimeWindow(START + 500), 10)
        assert empty["at"] == [] and empty["timeSpent"]["productive"] == []


def test_of_more_ranks_the_ends_and_an_even_choice_are_shown(recorded: Recorded) -> None:
    ranks = 3_000
    seconds = [9.0 if rank == 2_718 else 0.1 if rank == 577 else 1.0 + rank / 10_000 for rank in range(ranks)]
    recorded.store.record([sample(START + n, ranks=ranks, step_seconds=seconds) for n in range(3)])
    recorded.age()
    with Answers(recorded.file) as answers:
        found = answers.heat("team", "mine", "", TimeWindow(), 240, "stepSeconds")
    assert len(found["ranks"]) == 1_024 and found["leftOut"] == ranks - 1_024
    assert found["ranks"] == sorted(found["ranks"]) and {2_718, 577, 0, 2_999} <= set(found["ranks"])
    assert found["values"][0][found["ranks"].index(2_718)] == pytest.approx(9.0, rel=1e-3)
    assert len(found["values"][0]) == len(found["workers"]) == 1_024


def test_a_clock_that_is_far_ahead_doesnt_end_the_curves(recorded: Recorded) -> None:
    recorded.store.record([sample(START + 10**8, loss=[1.0, 1.0])])
    recorded.clock.now += 100
    recorded.store.record([sample(recorded.clock.now, loss=[2.0, 2.0])])
    with Answers(recorded.file) as answers:
        assert answers.series("team", "mine", "", TimeWindow(), 10)["loss"] == [1.0, 2.0]


def test_a_job_has_a_bounded_number_of_attempts_and_evidence(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_ATTEMPTS", 5)
    monkeypatch.setattr(stores, "MAX_EVIDENCE", 2)
    for attempt in range(1, 20):
        text = AttemptEvidence(attempt).to_json()
        recorded.store.record(
            [job(START, phase="Running", attempt=attempt), EvidenceRecord(START, key(), attempt, text)]
        )
    with Answers(recorded.file) as answers:
        assert [found["attempt"] for found in answers.job("team", "mine")["attempts"]] == [15, 16, 17, 18, 19]
        assert [found["attempt"] for found in answers.evidence("team", "mine")["items"]] == [18, 19]


@pytest.mark.parametrize(
    "status", [7, [], {"progress": 3, "failures": {}, "timeSpent": []}, {"progress": {"step": -1}}]
)
def test_an_object_that_anybody_edited_is_recorded(recorded: Recorded, status: object) -> None:
    edited: JobRecord = job(START)
    recorded.store.record([JobRecord(START, {**edited.job, "status": status})])
    with Answers(recorded.file) as answers:
        assert answers.job("team", "mine")["step"] is None


def test_samples_and_evidence_of_a_job_whose_record_is_to_come_are_kept(recorded: Recorded) -> None:
    recorded.store.record([sample(START, loss=[1.0, 1.0])])
    with Answers(recorded.file) as answers:
        assert answers.job("team", "mine")["job"] == {}
    recorded.store.record([job(START + 1, created=START - 500, phase="Running")])
    with Answers(recorded.file) as answers:
        found = answers.job("team", "mine")
    # The creation time comes from the job, not from the first sample, which is later in a new file.
    assert (found["phase"], found["createdAt"]) == ("Running", to_text(START - 500))


def test_of_a_thousand_lives_the_newest_are_listed(recorded: Recorded) -> None:
    lives = [job(START + n, key("again", f"life-{n}"), created=START + n) for n in range(1_000)]
    recorded.store.record(lives)
    with Answers(recorded.file) as answers:
        found = answers.job("team", "again")["lives"]
        assert [life["uid"] for life in found] == [f"life-{n}" for n in range(800, 1_000)]
        assert answers.job("team", "again", "life-5")["uid"] == "life-5"


def test_what_is_too_large_for_one_answer_is_left_out(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MAX_TEXT", 5_000)
    monkeypatch.setattr(answering, "MAX_PLACES", 5)
    for number in range(1, 6):
        pods = [PodPlace(0, f"mine-0-{number}", "a"), PodPlace(1, f"mine-1-{number}", "b")]
        recorded.store.record([job(START + number, pods=pods, phase="Running", attempt=number)])
        kept = AttemptEvidence(number, logs={0: "x" * 1_500}).to_json()
        recorded.store.record(
            [EvidenceRecord(START, key(), number, kept), LogRecord(START, key(), number, KeptLog(("x" * 1_500,)))]
        )
    with Answers(recorded.file) as answers:
        # The newest evidence and pods are kept, because they are worth most.
        assert [item["attempt"] for item in answers.evidence("team", "mine")["items"]] == [3, 4, 5]
        assert [len(each["workers"]) for each in answers.job("team", "mine")["attempts"]] == [0, 0, 0, 2, 2]
        assert [item["worker"] for item in answers.logs("team", "mine")["items"]] == [1, 2, 3]
        assert [item["worker"] for item in answers.logs("team", "mine", worker=5)["items"]] == [5]


def test_a_failure_of_any_size_is_kept_small(recorded: Recorded) -> None:
    """Anyone who can write a job's status could make each line of a list a megabyte long."""
    huge = {**FAILURE, "message": "x" * 100_000, "recovery": {"seconds": 1.5, "more": "y" * 9_999}, "list": [1] * 9_999}
    huge |= {f"field-{n}": "z" * 5_000 for n in range(100)}
    result = {f"figure-{n}-{'x' * 200}": n for n in range(100)}
    status = {"phase": "Restarting", "attempt": 1, "failures": [huge], "progress": {"result": result}}
    recorded.store.record([job(START, **status)])
    with Answers(recorded.file) as answers:
        [item] = answers.jobs()["items"]
        [attempt] = answers.job("team", "mine")["attempts"]
    assert {"reason": "OOMKilled", "recovery": {"seconds": 1.5}, "counted": True}.items() <= item["lastFailure"].items()
    assert len(json.dumps(item)) < 90_000 and attempt["failure"] == item["lastFailure"] and len(item["result"]) == 16


def test_figures_beyond_every_number_are_answered(recorded: Recorded) -> None:
    """A rank may report any number, and every reader would refuse its job's page."""
    recorded.store.record([sample(START + n, step=[1e300, 1.0], loss=[1e300, -1e300]) for n in range(3)])
    for _ in range(2):
        with Answers(recorded.file) as answers:
            series = answers.series("team", "mine", "", TimeWindow(), 100)
            assert series["step"] == [2**53 - 1] * 3
            assert answers.job("team", "mine")["attempts"][0]["lastStep"] == 2**53 - 1
            assert answers.heat("team", "mine", "", TimeWindow(), 100, "loss")["ranks"] == [0, 1]
        recorded.age()
