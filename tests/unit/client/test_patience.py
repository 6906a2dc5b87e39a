"""Reads are repeated while the API server doesn't answer, after its first answer and until a deadline."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport
from trainmaster.client import patience
from trainmaster.client.errors import InvalidRequest, NoCluster, NotAllowed
from trainmaster.client.patience import Outage, PatientTransport

DOWN = NoCluster("The cluster at x doesn't answer: Connection refused.")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.001)


def patient(answers: list[Any], until: float = math.inf) -> tuple[PatientTransport, list[str]]:
    said: list[str] = []
    return PatientTransport(FakeTransport({"GET /x": answers}), Outage(said.append), until), said


def test_an_outage_is_waited_out_and_reported_when_it_begins_and_ends() -> None:
    transport, said = patient([{"n": 1}, DOWN, DOWN, {"n": 2}])
    assert [transport.request("GET", "/x")["n"] for _ in range(2)] == [1, 2]
    assert said == [
        "The cluster at x doesn't answer: Connection refused. Trying again.",
        "The cluster answers again after 0 s.",
    ]
    assert transport.outage.sentence(datetime.now(UTC)) == ""


def test_a_cluster_that_never_answered_is_an_error_at_once() -> None:
    transport, said = patient([DOWN])
    with pytest.raises(NoCluster):
        transport.request("GET", "/x")
    assert said == []


def test_an_outage_is_an_error_at_the_deadline() -> None:
    transport, _ = patient([{}, DOWN], until=time.monotonic() + 0.05)
    transport.request("GET", "/x")
    with pytest.raises(NoCluster):
        transport.request("GET", "/x")


@pytest.mark.parametrize("error", [NotAllowed("no"), InvalidRequest("no")])
def test_a_refusal_is_no_outage(error: Exception) -> None:
    transport, said = patient([{}, error])
    transport.request("GET", "/x")
    with pytest.raises(type(error)):
        transport.request("GET", "/x")
    assert said == []


def test_a_write_isnt_repeated() -> None:
    transport = PatientTransport(FakeTransport({"GET /x": {}, "POST /x": DOWN}), Outage())
    transport.request("GET", "/x")
    with pytest.raises(NoCluster):
        transport.request("POST", "/x", body={})


def test_a_log_that_a_node_doesnt_answer_is_an_error_and_a_watch_is_repeated() -> None:
    log = "/api/v1/namespaces/default/pods/reviews-0/log"
    fake = FakeTransport({"GET /x": {}, "GET /api": {}}, {log: [DOWN], "/x": [DOWN, [b"1", b"2"]]})
    transport = PatientTransport(fake, Outage())
    transport.request("GET", "/x")
    assert list(transport.lines("/x", query={}, read_seconds=None)) == [b"1", b"2"]
    with pytest.raises(NoCluster):
        list(transport.lines(log, query={}, read_seconds=None))
    fake.streams = {log: [DOWN, [b"hello"]]}
    fake.answers["GET /api"] = DOWN
    assert list(transport.lines(log, query={}, read_seconds=None)) == [b"hello"]


def test_the_sentence_says_since_when() -> None:
    transport, _ = patient([{}])
    transport.outage.begins(DOWN)
    assert transport.outage.sentence(datetime.now(UTC)).startswith("The API server hasn't answered since ")
    assert transport.outage.sentence(datetime.now(UTC)).endswith(
        " (0s ago): what is shown is as of then. The cluster at x doesn't answer: Connection refused."
    )


def test_a_request_that_has_no_answer_for_long_is_an_outage() -> None:
    transport, said = patient([{}])
    seen: list[str] = []
    answer = transport.transport.request

    def slow(*args: Any, **options: Any) -> Any:
        seen.append(transport.outage.sentence(datetime.now(UTC) + timedelta(seconds=30)))
        seen.append(transport.outage.sentence(datetime.now(UTC)))
        return answer(*args, **options)

    vars(transport.transport)["request"] = slow
    transport.request("GET", "/x")
    assert seen[0].startswith("The API server hasn't answered since ") and seen[1] == ""
    assert transport.outage.sentence(datetime.now(UTC) + timedelta(seconds=30)) == "" and said == []
