"""`kubectl dtj stacks` asks by the job's annotation, waits for the answer, and names workers that don't answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import JobNotFound
from trainmaster_operator.api.evidence import Stacks

CONFIG_MAP = "/api/v1/namespaces/default/configmaps/reviews-stacks"
RANKS: Mapping[int, Mapping[str, Any]] = {
    0: {"step": 7, "waits": "collective", "text": "\n".join(f"frame {n}" for n in range(30))},
    1: {"step": 6, "state": "T", "silentSeconds": 61.2, "text": "pid 7\x1b[2J"},
}


@dataclass
class Operator:
    """Answers the newest request the second time that it is read."""

    transport: FakeTransport
    answer: dict[str, Any] = field(default_factory=dict)
    looks: int = 0

    def __getitem__(self, request: str) -> Any:
        if request == f"GET {CONFIG_MAP}":
            self.looks += 1
            if self.looks == 1:
                raise JobNotFound("none")
            id = self.requested() if self.looks > 2 else "an earlier one"
            return {"data": Stacks(**{"request": id, "attempt": 2, "ranks": RANKS, **self.answer}).to_data()}
        return {f"GET {JOBS}/reviews": job(**RUNNING), f"PATCH {JOBS}/reviews": job(**RUNNING)}[request]

    def requested(self) -> str:
        method, _, _, body = next(asked for asked in reversed(self.transport.asked) if asked[0] == "PATCH")
        (value,) = body["metadata"]["annotations"].values()
        assert (
            method
            and list(body["metadata"]["annotations"]) == ["trainmaster.dev/stacks"]
            and list(body) == ["metadata"]
        )
        return str(value)


@pytest.fixture
def operator(transport: FakeTransport) -> Operator:
    transport.answers = made = Operator(transport)  # type: ignore[assignment]
    return made


def test_it_shows_rank_by_rank_what_was_answered_to_its_own_request(operator: Operator) -> None:
    shown = run("stacks", "reviews")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and shown.stderr == ""
    assert lines[0].startswith("Attempt 2, ") and lines[0].endswith(": 2 ranks have answered")
    assert lines[1] == "  Rank 0: step 7, waits in a collective" and lines[31] == "    frame 29"
    assert "  Rank 1: step 6, no progress for 61 s, stopped by a signal (state T)" in lines
    assert "\x1b" not in shown.output, "what pods said can't command a terminal"


def test_one_rank_and_a_program(operator: Operator) -> None:
    assert "Rank 0" not in run("stacks", "reviews", "--rank", "1").output
    assert list(json.loads(run("stacks", "reviews", "-o", "json").stdout)["ranks"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("answer", "arguments", "sentence"),
    [
        ({"unanswered": (1, 3)}, (), "no answer from the ranks of workers 1, 3"),
        (
            {"unanswered": tuple(range(20))},
            (),
            "no answer from the ranks of workers 0, 1, 2, 3, 4, 5, 6, 7 and 12 more",
        ),
        (
            {"problem": "no worker's agent is connected", "ranks": {}, "unanswered": (0, 1)},
            (),
            "could not be asked: no w",
        ),
        ({}, ("--rank", "9"), "there is no answer of rank 9: ranks 0 to 1 run"),
        ({"ranks": {}}, ("--rank", "9"), "there is no answer of rank 9: no rank runs at the moment"),
        ({"left_out": 40}, (), "40 more ranks have answered than can be kept"),
    ],
)
def test_what_is_missing_is_said_and_is_a_failure(
    operator: Operator, answer: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    operator.answer = answer
    shown = run("stacks", "reviews", *arguments)
    assert shown.exit_code == 1 and sentence in shown.stderr


def test_output_that_is_not_kept_is_named(operator: Operator) -> None:
    operator.answer = {"withheld": True, "ranks": {0: {"step": 7, "text": ""}}}
    shown = run("stacks", "reviews")
    assert shown.exit_code == 0 and "There are no stacks: the job's output isn't kept" in shown.stdout


def test_many_ranks_are_shown_in_brief(operator: Operator) -> None:
    operator.answer = {"ranks": dict.fromkeys(range(5), RANKS[0])}
    assert "    ... 18 more lines: --rank 4" in run("stacks", "reviews").stdout.splitlines()


def test_the_time_given_is_over(transport: FakeTransport) -> None:
    transport.answers = {
        f"GET {JOBS}/reviews": job(**RUNNING),
        f"PATCH {JOBS}/reviews": job(**RUNNING),
        f"GET {CONFIG_MAP}": JobNotFound("none"),
    }
    shown = run("stacks", "reviews", "--timeout", "0.3s")
    assert shown.exit_code == 3 and "Nobody has answered for job reviews within 0.3 s" in shown.stderr


def test_a_job_without_ranks_is_not_asked(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Suspended")}
    shown = run("stacks", "reviews")
    assert shown.exit_code == 1 and "Job reviews is Suspended: there are no ranks" in shown.stderr
    assert all(method == "GET" for method, *_ in transport.asked)
