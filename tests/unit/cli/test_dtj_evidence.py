"""`kubectl dtj evidence` shows the culprit first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.cli.dtj_command import JOBS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.cli import dtj
from trainmaster.cli.console import SafeConsole
from trainmaster.client import JobNotFound
from trainmaster_operator.api.evidence import AttemptEvidence


def kept(*attempts: AttemptEvidence) -> dict[str, Any]:
    return {"data": {f"attempt-{one.attempt}.json": one.to_json() for one in attempts} | {"attempt-9.json": "damaged"}}


HANG = AttemptEvidence(
    2,
    {"reason": "Hung", "rank": 1, "worker": 1, "pod": "reviews-1", "exitCode": 68, "message": "no progress\x1b[2J"},
    {
        0: {"state": "Stopped"},
        1: {"state": "Failed", "reason": "Hung", "rank": 1, "error": "in stuck", "environment": "2 x H200"},
    },
    {
        0: {"step": 7, "waits": "collective", "collective": 12, "text": "\n".join(f"frame {n}" for n in range(30))},
        1: {"step": 7, "state": "T", "silentSeconds": 61.2, "text": "\n".join(f"mine {n}" for n in range(30))},
    },
    {1: "last words"},
)
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/reviews-evidence"


def test_evidence_shows_the_culprit_first_and_a_rank_whole_when_asked(transport: FakeTransport) -> None:
    crash = AttemptEvidence(1, {"reason": "Signal"})
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": kept(HANG, crash)}
    output = run("evidence", "reviews").output
    lines = output.splitlines()
    assert lines[0] == "Attempt 1: Signal"
    assert "Attempt 2: Hung of worker 1, rank 1, pod reviews-1, exit code 68" in lines
    assert "\x1b" not in output, "what pods said can't command a terminal"
    culprit = lines.index("  Rank 1: step 7, no progress for 61 s, stopped by a signal (state T)")
    assert lines[culprit + 30] == "    mine 29"
    bystander = lines.index("  Rank 0: step 7, last entered collective 12, waits in a collective")
    assert culprit < bystander
    assert lines[bystander + 13] == "    ... 18 more lines: --rank 0"
    worker = lines.index("  Worker 1: Failed, Hung, rank 1")
    assert lines[worker + 1 : worker + 3] == ["    environment: 2 x H200", "    in stuck"]
    assert lines[-2:] == ["  The log of worker 1 ends:", "    last words"]
    whole = run("evidence", "reviews", "--attempt", "2", "--rank", "0").output
    assert "    frame 29" in whole
    assert "mine 29" not in whole and "Attempt 1" not in whole
    found = json.loads(run("evidence", "reviews", "-o", "json").output)
    assert [one["attempt"] for one in found] == [1, 2]


def test_a_job_without_evidence_says_so(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": JobNotFound("none")}
    assert run("evidence", "reviews").output.startswith("No evidence was kept of job reviews")


@pytest.mark.parametrize("output", [[], ["-o", "json"]])
@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--attempt", "3"), "Job reviews has no attempt 3: its newest is 2"),
        (("--rank", "2"), "Job reviews has no rank 2: it has ranks 0 to 1"),
    ],
)
def test_what_the_job_doesnt_have_is_refused_with_what_it_has(
    transport: FakeTransport, option: tuple[str, str], sentence: str, output: list[str]
) -> None:
    found = {**job(**RUNNING), "spec": {"image": "x", "command": ["python"], "workers": 2}}
    transport.answers = {f"GET {JOBS}/reviews": found, f"GET {CONFIG_MAP}": kept(HANG)}
    result = run("evidence", "reviews", *option, *output)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {sentence}\n")


def test_an_attempt_without_evidence_is_no_error(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": kept(HANG)}
    result = run("evidence", "reviews", "--attempt", "1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("No evidence of attempt 1 was kept of job reviews")


def test_on_a_terminal_sentences_are_broken_between_words_and_lines_of_logs_are_left_to_it(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        "ValueError: no such data set: imagenet, at train.py:3; rank 0 (worker 0, pod reviews-0) ended with exit code 1"
    )
    error = f"  File {'x' * 200}\nValueError: {'there is no such data set, ' * 5}"
    log = "[rank 0]: " + "loss " * 40
    crash = AttemptEvidence(
        1, {"reason": "Error", "worker": 0, "message": message}, {0: {"error": error}}, {}, {0: log}
    )
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING), f"GET {CONFIG_MAP}": kept(crash)}
    page = run("evidence", "reviews").output
    assert f"  {message}" in page.splitlines(), "whoever reads a pipe has sentences whole"
    monkeypatch.setattr(SafeConsole, "is_terminal", True)
    lines = CliRunner().invoke(dtj.app, ["evidence", "reviews"], env={"COLUMNS": "80"}).output.splitlines()
    assert lines[1:3] == [
        "  ValueError: no such data set: imagenet, at train.py:3; rank 0 (worker 0, pod",
        "    reviews-0) ended with exit code 1",
    ]
    assert f"    {log}" in lines
    assert [line for line in lines if len(line) > 80] == [f"    {log}"]
    assert "".join(page.split()) == "".join("".join(lines).split()), "nothing is lost"
