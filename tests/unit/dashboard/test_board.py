"""Any job becomes a row. For each scope, only changed rows are sent, and each is encoded once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.processes.dashboard.fake_api import job
from trainmaster.dashboard.board import KEPT_BATCHES, Board, row_of
from trainmaster.dashboard.streams import encoded

HOSTILE: Any = [None, [], {}, "x" * 10_000, "\ud800", -1, 10**400, float("nan"), True, [None], {"a": {"b": []}}]


def data(event: bytes) -> Any:
    """Returns the data of an event."""
    _, line, end, rest = event.decode().split("\n", 3)
    assert (end, rest) == ("", "")
    return json.loads(line.removeprefix("data: "))


def queued(**status: Any) -> dict[str, Any]:
    condition = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-11-26T01:00:00Z", **status}
    return job("bert", phase="Suspended", conditions=[condition])


def test_a_row_says_what_the_list_shows() -> None:
    made = job(
        "bert",
        restarts=1,
        progress={"step": 3, "totalSteps": 9, "etaSeconds": 4.5, "loss": 0.25, "goodput": 0.9},
        failures=[{"message": "\nrank 1 raised ValueError\n  line 3", "failedAt": "2026-11-26T01:00:00Z"}],
    )
    made["spec"] = {"runPolicy": {"suspend": True}, "scheduling": {"queue": "gold"}}
    row = row_of(made)
    assert row == {
        **{"uid": "uid-bert", "namespace": "team", "name": "bert", "phase": "Running", "attempt": 1, "restarts": 1},
        **{"disruptions": 0, "running": 2, "desired": 2, "step": 3, "totalSteps": 9, "etaSeconds": 4.5, "loss": 0.25},
        **{"samplesPerSecond": None, "goodput": 0.9, "createdAt": "2026-11-26T01:00:00Z", "startedAt": None},
        **{"completedAt": None, "failure": "rank 1 raised ValueError", "failedAt": "2026-11-26T01:00:00Z"},
        **{"reason": None, "waits": None, "queue": "gold", "suspended": True},
    }
    assert row_of({**made, "status": {}})["phase"] == "Pending"


def test_what_a_job_waits_for_is_its_conditions_sentence() -> None:
    row = row_of(queued(reason="Queued", message="it is the 3rd in queue gold"))
    assert (row["waits"], row["reason"]) == ("it is the 3rd in queue gold", "Queued")
    assert row_of(queued(reason="Suspended", message="by its user"))["waits"] is None


def test_a_job_that_no_rank_failed_in_says_what_ended_it() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it took too long"}
    assert row_of(job("bert", phase="Failed", conditions=[condition]))["failure"] == "it took too long"
    before = [{"attempt": 1, "reason": "Error", "message": "rank 1 raised ValueError"}]
    failed = job("bert", phase="Failed", conditions=[condition], failures=before)
    assert row_of(failed)["failure"] == "it took too long", "it recovered from the rank's failure"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "worker 0 (rank 1, pod bert-0, node gpu-7) ended with exit code 1: Traceback | File x | ValueError: lost",
            "rank 1 ended with exit code 1: ValueError: lost",
        ),
        ("worker 3 (pod bert-3, node gpu-7) ended with exit code 2", "worker 3 ended with exit code 2"),
        ("worker 1 (rank 3, pod bert-1, node a) was killed by signal 9: killed by SIGKILL",
         "rank 3 was killed by signal 9: killed by SIGKILL"),
        ("pod bert-1 of worker 1 on node local-1 was deleted", "pod bert-1 of worker 1 on node local-1 was deleted"),
        ("worker 0 (rank 1, pod bert-0, node a) said: " + "x" * 5_000, "rank 1 said: " + "x" * 287),
        ("", "Error"),
    ],
)  # fmt: skip
def test_a_failure_is_said_in_few_words_with_its_last_line(message: str, words: str) -> None:
    assert row_of(job("bert", failures=[{"message": message, "reason": "Error"}]))["failure"] == words


@pytest.mark.parametrize("value", HOSTILE)
def test_no_object_breaks_a_row(value: Any) -> None:
    board = Board()
    for wrong in (
        {"metadata": value, "spec": value, "status": value},
        {"status": dict.fromkeys(("phase", "progress", "workers", "failures", "conditions", "nodeFailures"), value)},
        {"status": {"failures": [value, {"node": value, "message": value}], "avoidedNodes": value}},
        {"status": {"progress": dict.fromkeys(("step", "loss", "goodput", "etaSeconds"), value), "phase": "Running"}},
        {"status": {"conditions": [{"message": "m", "lastTransitionTime": value}, {"message": value}]}},
        {"status": {"nodeFailures": {"a": value}, "avoidedNodes": [value]}},
        {"spec": {"scheduling": value, "runPolicy": value}},
    ):
        board.put(wrong)
        assert len(encoded("jobs", list(board.rows.values()))) < 5_000
        board.make_batch()
        json.loads(board.whole().decode().split("data: ")[1], parse_constant=pytest.fail)


def test_a_text_ends_no_event() -> None:
    row = row_of(job("bert", failures=[{"message": "a\r\n\r\nevent: jobs\ndata: []\u2028"}]))
    event = encoded("changed", {"rows": [row], "text": "a\n\nevent: jobs\ndata: 1"})
    assert event.count(b"\n") == 3 and data(event)["text"].endswith("data: 1")


def test_what_json_doesnt_have_is_null_and_no_depth_breaks_an_answer() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    found = data(encoded("job", {"a": [float("nan"), 1.5, -float("inf")], "b": {"c": "\ud800"}, "deep": deep}))
    assert found["a"] == [None, 1.5, None] and found["b"] == {"c": "\ud800"} and found["deep"]


def test_a_batch_has_what_changed_since_the_last_one_and_is_made_once() -> None:
    board = Board()
    board.put(job("bert", progress={"step": 1}))
    board.put(job("gpt"))
    board.forget_changes()
    assert not board.make_batch()
    board.put(job("bert", progress={"step": 2}))
    board.put(job("bert", progress={"step": 3, "loss": 0.5}))
    board.put(job("new"))
    board.put(job("brief"))
    board.remove("uid-brief")
    board.remove("uid-gpt")
    board.remove("uid-nobody's")
    assert board.make_batch()
    (batch,) = board.since(0) or []
    found = data(batch)
    assert found["rows"] == [{"uid": "uid-bert", "step": 3, "loss": 0.5}, row_of(job("new"))]
    assert found["gone"] == ["uid-gpt"]
    assert (board.since(0) or [])[0] is batch and board.since(1) == []
    board.put(job("bert", progress={"step": 2}))
    board.put(job("bert", progress={"step": 3, "loss": 0.5}))
    assert not board.make_batch(), "it is what it was"


def test_who_is_too_far_behind_begins_anew_and_all_of_them_with_one_message() -> None:
    board = Board()
    for step in range(KEPT_BATCHES + 2):
        board.put(job("bert", progress={"step": step}))
        assert board.make_batch()
    assert board.since(1) is None
    assert len(board.since(2) or []) == KEPT_BATCHES
    assert data(board.whole())["jobs"][0]["step"] == KEPT_BATCHES + 1
    assert board.whole() is board.whole()


def test_a_list_says_which_jobs_there_are() -> None:
    board = Board()
    board.put(job("bert", nodeFailures={"node-a": 1}))
    board.put(job("gpt"))
    board.forget_changes()
    board.keep_only(["uid-gpt"])
    assert board.make_batch() and data((board.since(0) or [])[0])["gone"] == ["uid-bert"]
    assert not board.blame
